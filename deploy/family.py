"""Who descends from a process, read from /proc; each with its start time, because process ids are used again."""

import os
import signal
from pathlib import Path

_PARENT, _STARTED = 1, 19
"""Places in /proc/PID/stat, counted from behind the name."""


def family(pid: int) -> dict[int, int]:
    """Start times of every process that descends from `pid`, and of itself."""
    parents: dict[int, int] = {}
    started: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        fields = _fields(folder) if folder.name.isdigit() else []
        if fields:
            parents[int(folder.name)], started[int(folder.name)] = int(fields[_PARENT]), int(fields[_STARTED])
    found = {pid} & started.keys()
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {member: started[member] for member in found}


def end_family(members: dict[int, int]) -> None:
    """Kills those of `members` that are still the same processes."""
    for pid, started in members.items():
        fields = _fields(Path(f"/proc/{pid}"))
        if fields and int(fields[_STARTED]) == started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _fields(folder: Path) -> list[str]:
    """What stands in `stat` behind the name; nothing when the process has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
