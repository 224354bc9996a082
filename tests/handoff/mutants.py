"""One-line mistakes in how running requests move to another worker, each of which the named tests must see."""

from tests.mutants import Mutant

_MOVING = ("tests/handoff/test_moving.py",)

MUTANTS = (
    Mutant(
        "a state is read behind its pending records",
        "segue/engine.py",
        "if request is not None and request.tables is not None and request.tables.slot is not None:",
        "if request is not None and request.tables is None:",
        _MOVING,
    ),
    Mutant(
        "a call that was refused takes the state away from others",
        "decode_service/departures.py",
        "if (kept := self._kept.get(command.handle)) is not None and kept.claimed:",
        "if (kept := self._kept.get(command.handle)) is not None:",
        _MOVING,
    ),
    Mutant(
        "a state is kept for ever",
        "decode_service/departures.py",
        "if not kept.claimed and kept.until <= now]:",
        "if kept.claimed and kept.until <= now]:",
        _MOVING,
    ),
)
