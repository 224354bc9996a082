"""What a figure was measured on: processor, cores, library versions, and the commit of the code."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def describe_machine() -> dict[str, object]:
    """Facts about this machine that a reader needs beside a figure."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
    }


def describe_commit() -> str:
    """The commit checked out, with `-dirty` when the tree differs from it; "unknown" outside a repository."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
