"""The command `segue` in copies of a process that has read all that workers and routers read."""

import json
import os
import sys

# What these commands import when they run is here before the copies are made.
import deploy.router
import deploy.worker  # noqa: F401
from deploy.cli import main
from tests.support.forks import Forked, origin, serve_forks


def start(*command: str) -> Forked:
    """Runs a command, which ends with us; what it reports and what it says besides come on one pipe."""
    return origin(__name__).fork(json.dumps(command))


def _run(command: str) -> None:
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    os.environ["SEGUE_LOG"] = "INFO"
    main([*json.loads(command), "--tied-to", str(os.getppid())])


if __name__ == "__main__":
    serve_forks(int(sys.argv[1]), _run)
