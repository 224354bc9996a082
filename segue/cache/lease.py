"""What one request uses of the prefix tree, named exactly, so that every pin has a holder and ends with it."""

from dataclasses import dataclass, field

from segue.cache.node import Node


@dataclass(slots=True, eq=False)
class Lease:
    """Made and changed by the tree alone.

    `anchor` is the deepest node that the request needs to stay, and with it all above. `foreign` counts the nodes down
    to there whose full page is not the request's own table's: a duplicate was computed at the same time. `used` are the
    window pages of the tree in the request's table, by page index. `kept` is the newest checkpoint the request can be
    matched at, with the window pages that a match there reads: what the retention floor protects.
    """

    anchor: Node
    foreign: int = 0
    used: dict[int, Node] = field(default_factory=dict)
    kept: Node | None = None
    kept_window: tuple[Node, ...] = ()
