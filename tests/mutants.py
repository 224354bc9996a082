"""`python -m tests.mutants NAME` proves that the tests see each one-line mistake listed in tests/NAME/mutants.py.

Each mutant is one edit in a copy of the sources. A mutant is killed when the tests that its table names fail; one that
survives, or whose line is not found any more, fails the run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` goes wrong when `old`, which stands exactly once in `file`, becomes `new`."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Table(Protocol):
    """What tests/NAME/mutants.py offers."""

    MUTANTS: Sequence[Mutant]


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when every mutant is killed and the tests pass without one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("name", help="a folder under tests/ with a mutants.py")
    parser.add_argument("--only", default="", help="mutants whose description contains this")
    args = parser.parse_args(arguments)
    mutants = cast(Table, import_module(f"tests.{args.name}.mutants")).MUTANTS
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy_sources(copy)
        if not _pass(copy, sorted({test for mutant in mutants for test in mutant.tests})):
            print("the tests fail without a mutant")
            return 1
        for mutant in mutants:
            if args.only not in mutant.what:
                continue
            started = time.monotonic()
            killed = _is_killed(copy, mutant)
            print(
                f"{'killed' if killed else 'SURVIVED':<9}{time.monotonic() - started:5.1f} s  {mutant.what}", flush=True
            )
            if not killed:
                survivors.append(mutant)
    return 1 if survivors else 0


def _copy_sources(copy: Path) -> None:
    """Packages that mutants touch are copied; the rest is the repository's own."""
    ignored = shutil.ignore_patterns("__pycache__", "model")
    for name in ("segue", "kv_transfer", "decode_service", "prefill_service", "router", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    # Large, and no mutant touches it.
    (copy / "segue/zoo/model").symlink_to(ROOT / "segue/zoo/model")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (copy / path.name).exists():
            (copy / path.name).symlink_to(path)


def _is_killed(copy: Path, mutant: Mutant) -> bool:
    target = copy / mutant.file
    text = target.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has {text.count(mutant.old)} lines like: {mutant.old}"
    target.write_text(text.replace(mutant.old, mutant.new))
    try:
        return not _pass(copy, mutant.tests)
    finally:
        target.write_text(text)


def _pass(copy: Path, tests: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"]
    # Without bytecode files, so that an edit within one second of the last is not overlooked.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [*command, "--hypothesis-profile=mutants", *tests], cwd=copy, env=environment, capture_output=True, check=False
    )
    assert found.returncode in (0, 1), found.stdout.decode()[-2000:]
    return found.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
