"""How much of a prompt is cached: by component, and jointly."""

from dataclasses import dataclass

from segue.cache.node import Node
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
