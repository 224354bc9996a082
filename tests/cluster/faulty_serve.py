"""`segue serve` whose engines fail on demand: `python -m tests.cluster.faulty_serve FOLDER --set ...`.

A file `break-ROLE` or `hang-ROLE` in the folder is taken away by the next step of an engine in that role, which then
breaks an invariant or never ends. Everything else is the product's.
"""

import argparse
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deploy.console import Console
from deploy.ray_serve import serve_on_ray
from deploy.settings import Settings, load_settings
from kv_transfer.hosting.loading import Loaded, load
from segue.batch.step import StepOutput, StepPlan, StepRunner


@dataclass(frozen=True, slots=True)
class FaultyRunner:
    """Runs steps as `runner` does, unless a file says otherwise."""

    runner: StepRunner
    folder: Path
    role: str

    def launch(self, plan: StepPlan) -> StepOutput:
        assert not self._told("break"), "page 7 has two owners"
        if self._told("hang"):
            threading.Event().wait()
        return self.runner.launch(plan)

    def _told(self, fault: str) -> bool:
        try:
            (self.folder / f"{fault}-{self.role}").unlink()
        except FileNotFoundError:
            return False
        return True


def faulty(folder: Path, settings: Settings) -> Loaded:
    """The engine that `settings` ask for, with a runner that fails on demand."""
    loaded = load(settings.engine, lambda progress: None, lambda text: None)
    engine = loaded.engine
    engine._runner = FaultyRunner(engine._runner, folder, settings.engine.role)
    return loaded


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    settings = load_settings(None, args.set)
    settings = replace(settings, router=replace(settings.router, port=0))
    return serve_on_ray(settings, Console(sys.stdout), "WARNING", partial(faulty, args.folder))


if __name__ == "__main__":
    sys.exit(main())
