"""The command `segue`, run to its end."""

import subprocess
import sys
from pathlib import Path


def segue(*arguments: str, stdin: str = "", limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    """What it printed, and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=Path(__file__).parents[2],
        check=False,
    )
