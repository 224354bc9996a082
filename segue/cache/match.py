"""How much of a prompt is cached: by component, and jointly."""

from dataclasses import dataclass

from segue.cache.node import Node
from segue.ids import Slot
from segue.state.spec import ComponentName


@dataclass(frozen=True, slots=True)
class Match:
    """`path` are the nodes of the unbroken pages, first page first; `resumable_pages` of them can be continued from.

    `limited_by` names the component that kept the resumable depth from being the path's whole length, None when none
    did.
    """

    salt: str
    path: tuple[Node, ...]
    resumable_pages: int
    limited_by: ComponentName | None

    @property
    def resumable(self) -> tuple[Node, ...]:
        """The nodes down to the resumable depth."""
        return self.path[: self.resumable_pages]

    @property
    def checkpoint(self) -> Slot | None:
        """The state after the resumable tokens; None where nothing is resumed, or nothing recurrent."""
        slot = self.path[self.resumable_pages - 1].checkpoint if self.resumable_pages else None
        return None if slot is None else Slot(slot)
