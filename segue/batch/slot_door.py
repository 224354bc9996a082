"""What is told of every recurrent slot that changes owner; a protocol only, no tensors."""

from typing import Protocol

from segue.ids import Slot
from segue.state.replay_figures import ReplayFigures


class SlotDoor(Protocol):
    """Told of every slot that changes owner, at the moment it does (SlotStates in a worker, a recorder in tests)."""

    def start(self, slot: Slot) -> None:
        """The slot was just allocated: zero it now."""

    def resume(self, checkpoint: Slot, slot: Slot) -> None:
        """The slot was just allocated: it begins as a copy of the checkpoint."""

    def receive(self, slot: Slot, depth: int) -> None:
        """The slot was just taken over with a whole state at `depth` in it: it is never zeroed."""

    def advance(self, slot: Slot, depth: int) -> None:
        """A committed step left the slot's state at `depth`."""

    def whole(self, slot: Slot) -> None:
        """The slot is about to be given away: its state must be whole."""

    def release(self, slot: Slot) -> None:
        """The slot goes back to its pool."""

    def check(self) -> None:
        """Asserts that what is kept beside the slots is kept for those that need it, and for nobody else."""

    def figures(self) -> ReplayFigures:
        """What came of matrix states that are not written in every step."""
