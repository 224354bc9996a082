"""What a starting process tells whoever started it, one line each: JSON for a supervisor, prose for a person."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import TextIO, TypeAlias

_PREFIX = "@segue "
"""Marks our lines on a child's standard output, where libraries may print too."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights are being read."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Planned:
    """How the memory for state was split."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The process serves at `address`."""

    address: str


Report: TypeAlias = Loading | Planned | Ready
_KINDS: dict[str, type[Loading] | type[Planned] | type[Ready]] = {
    cls.__name__.lower(): cls for cls in (Loading, Planned, Ready)
}


def encode(report: Report) -> str:
    """One line, without its end."""
    return _PREFIX + json.dumps({"kind": type(report).__name__.lower(), **asdict(report)})


def decode(line: str) -> Report | None:
    """The report in a line of a child's output, None when it is something else."""
    if not line.startswith(_PREFIX):
        return None
    fields = json.loads(line.removeprefix(_PREFIX))
    return _KINDS[fields.pop("kind")](**fields)


def describe(report: Report) -> str:
    """The report for a person."""
    match report:
        case Loading():
            return f"loading weights: {report.done_bytes / 1e6:.1f} of {report.total_bytes / 1e6:.1f} MB"
        case Planned():
            return report.text
        case Ready():
            return f"ready on {report.address}"


class Reporter:
    """Writes reports to a stream, in the form that the reader of that stream wants."""

    def __init__(self, stream: TextIO, *, for_supervisor: bool) -> None:
        self._stream = stream
        self._text = encode if for_supervisor else describe

    def __call__(self, report: Report) -> None:
        print(self._text(report), file=self._stream, flush=True)


def reporter(*, supervised: bool) -> Reporter:
    """The reporter of this process."""
    return Reporter(sys.stdout, for_supervisor=supervised)
