"""What a worker says of matrix states that are not written in every step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Counted since the start: decode steps of all slots, and how often a ring was folded into the matrix states, by
    cause: it was full, a checkpoint was due, somebody other than the decode kernel read the slot. `pending` records of
    all slots are not folded yet. All zero where every step writes.
    """

    steps: int = 0
    folds_full: int = 0
    folds_checkpoint: int = 0
    folds_read: int = 0
    pending: int = 0
