"""`python -m benchmarks` lists the measurements; `python -m benchmarks NAME` runs one and ends in one line of JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.refusal import Refused
from segue.threads import let_waiting_threads_sleep

BENCHMARKS = (
    "engine",
    "overhead",
    "serve",
    "accuracy",
    "transfer",
    "handoff",
    "cuda_handoff",
    "policy",
    "reuse",
    "shared",
    "backup",
    "overload",
    "drain",
    "soak",
    "replay",
    "snapshot",
)


class Benchmark(Protocol):
    """What a module in this folder offers under its own name."""

    NAME: str
    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> dict[str, object]:
        """Measures, checks that what it measured is right (raises where it is not), and returns figures by name."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 with a figure, 1 without."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME")
    # Only what is asked for: not every machine that one of them is for has the libraries of all.
    wanted = [name for name in BENCHMARKS if name in arguments[:1]] or BENCHMARKS
    found = {name: cast(Benchmark, import_module(f"benchmarks.{name}")) for name in wanted}
    for name, benchmark in found.items():
        own = names.add_parser(name, help=benchmark.SUMMARY, description=benchmark.SUMMARY)
        own.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
        benchmark.add_arguments(own)
    args = parser.parse_args(arguments)
    if args.name is None:
        parser.print_help()
        return 0
    try:
        figures = found[args.name].run(args)
    except Refused as refusal:
        print(f"{args.name} gives no figure: {refusal}", file=sys.stderr)
        return 1
    # Of a path only its name: where a folder lies on the machine says nothing to anybody else.
    settings = {
        name: value.name if isinstance(value, Path) else str(value)
        for name, value in vars(args).items()
        if name not in ("name", "json") and value is not None
    }
    report = {
        "benchmark": args.name,
        "figures": figures,
        "settings": settings,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    # As `segue worker` does it, and before any benchmark loads torch. The bare engine shares its cores with nobody.
    if sys.argv[1:2] != ["engine"]:
        let_waiting_threads_sleep()
    sys.exit(main(sys.argv[1:]))
