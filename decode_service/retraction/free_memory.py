"""How much memory of the host this process can still get, as far as the system tells; allocates nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFiles:
    """Where the system tells: its memory, the control group of this process, and where those of version 2 lie."""

    meminfo: Path = Path("/proc/meminfo")
    cgroup: Path = Path("/proc/self/cgroup")
    cgroups: Path = Path("/sys/fs/cgroup")


def available_bytes(files: SystemFiles) -> int | None:
    """What the system has available, or a control group of this process has left; the least. None when neither tells.

    A system that promises more memory than there is gives it all the same, and ends the process when it is written to.
    """
    told = [_available(files.meminfo), *map(_left, _groups(files))]
    known = [one for one in told if one is not None]
    return max(0, min(known)) if known else None


def _available(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _groups(files: SystemFiles) -> list[Path]:
    """The group of this process and all around it, the innermost first: each may have a limit of its own."""
    for line in _lines(files.cgroup):
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0":
            inner = files.cgroups / path.lstrip("/")
            return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(files.cgroups)]
    return []


def _left(folder: Path) -> int | None:
    """None when the group has no limit. What it has cached of files gives way before anybody is killed."""
    limit, usage = _lines(folder / "memory.max"), _lines(folder / "memory.current")
    if not limit or not usage or limit[0] == "max":
        return None
    stat = dict(line.split(maxsplit=1) for line in _lines(folder / "memory.stat"))
    cached = sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return int(limit[0]) - int(usage[0]) + cached


def _lines(path: Path) -> list[str]:
    """Empty where there is no such file, as on a system that tells otherwise or nothing."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
