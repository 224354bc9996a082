"""Processes that write, claim and die: as a program, this file does one of them, and tells in JSON what happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from segue.errors import SnapshotClaimed
from tests.state.snapshot.sample import (
    later,
    manifest_of,
    open_folder,
    tensor_bytes,
    tensors,
    write_one,
)

ROOT = Path(__file__).parent.parent.parent.parent
ROUNDS = 20


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.state.snapshot.processes", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answers(*arguments: str) -> "list[list[str]]":
    """What such a process says before it ends."""
    process = start(*arguments)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    found: list[list[str]] = json.loads(said)
    return found


def _race(root: str, snapshot_id: str, lease_s: str) -> None:
    """Two forked processes wait for one pipe to close, then both claim; each round all earlier claims have run out."""
    rounds = []
    for number in range(ROUNDS):
        waiting, starting = os.pipe()
        folder = open_folder(Path(root), clock=later(number * (float(lease_s) + 1)), claim_s=float(lease_s))
        snapshot = folder.read(snapshot_id)

        def claim(waiting: int = waiting, starting: int = starting) -> None:
            os.close(starting)
            os.read(waiting, 1)
            try:
                snapshot.claim(f"racer {os.getpid()}")  # noqa: B023 (it runs within this round)
            except SnapshotClaimed:
                os._exit(1)

        racers = [_forked(claim) for _ in range(2)]
        os.close(starting)
        rounds.append([{0: "won", 1: "claimed"}.get(_ended(racer), "failed") for racer in racers])
        os.close(waiting)
    print(json.dumps(rounds))


def _hold(root: str) -> None:
    """Writes, and commits when told to."""
    with open_folder(Path(root)).begin(tensor_bytes()) as writer:
        payloads = [writer.write_rank(rank, tensors(rank)) for rank in range(2)]
        print(writer.snapshot_id, flush=True)
        sys.stdin.readline()
        writer.commit(manifest_of(writer, payloads))


def _write(folder: Path) -> None:
    write_one(open_folder(folder))


def _die_writing(root: str, *points: str) -> None:
    _die(root, points, lambda folder: None, _write)


def _die_consuming(root: str, *points: str) -> None:
    def consume(folder: Path) -> None:
        (found,) = open_folder(folder).list()
        snapshot = open_folder(folder).read(found.snapshot_id)
        snapshot.verify()
        snapshot.claim("who dies").consume()

    _die(root, points, _write, consume)


def _die(root: str, points: Sequence[str], prepare: Callable[[Path], None], act: Callable[[Path], None]) -> None:
    """Kills a process at each of these shares of its calls into C, in a folder of that name; tells how it ended."""
    whole = Path(root) / "whole"
    whole.mkdir()
    prepare(whole)
    counted, telling = os.pipe()
    _ended(_forked(lambda: os.write(telling, str(_calls(lambda: act(whole))).encode())))
    # Closed first: a process that failed has told nothing.
    os.close(telling)
    total = int(os.read(counted, 32))
    outcomes = []
    for point in points:
        folder = Path(root) / point
        folder.mkdir()
        prepare(folder)
        at = int(float(point) * total)
        outcomes.append([point, str(at), str(_ended(_forked(lambda: _calls(lambda: act(folder), at))))])  # noqa: B023
    print(json.dumps([[str(total)], *outcomes]))


def _calls(act: Callable[[], None], fatal: int = -1) -> int:
    """How many calls into C, and returns from them, this makes; it does not survive the one numbered `fatal`."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in {"c_call", "c_return"}:
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def _forked(act: Callable[[], object]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        act()
        os._exit(0)
    finally:
        os._exit(2)


def _ended(process: int) -> int:
    """The exit code, or a signal's number negated."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    deeds: dict[str, Callable[..., None]] = {
        "race": _race,
        "hold": _hold,
        "die-writing": _die_writing,
        "die-consuming": _die_consuming,
    }
    deeds[sys.argv[1]](*sys.argv[2:])
