"""One page of tokens in the prefix tree, with what is cached of it, who uses that, and when it was last of use."""


class Node:
    """`pages` counts the pages from the root down to this one; the root is page 0 of no tokens.

    It holds per component a page, a slot or nothing. Pins count users: of the node as the end of a path (`path_pins`),
    of its window page, of its checkpoint. `window_needs` counts the cached checkpoints that are resumed with its window
    page.
    """

    __slots__ = (
        "checkpoint",
        "checkpoint_hit",
        "checkpoint_pins",
        "checkpoint_used",
        "children",
        "full",
        "hit",
        "key",
        "pages",
        "parent",
        "path_pins",
        "used",
        "window",
        "window_needs",
        "window_pins",
    )

    def __init__(self, parent: "Node | None", key: bytes, pages: int) -> None:
        self.parent, self.key, self.pages = parent, key, pages
        self.children: dict[bytes, Node] = {}
        self.full: int | None = None
        self.window: int | None = None
        self.checkpoint: int | None = None
        self.path_pins = self.window_pins = self.checkpoint_pins = self.window_needs = 0
        self.used = self.checkpoint_used = 0
        self.hit = self.checkpoint_hit = False

    @property
    def pinned(self) -> bool:
        return bool(self.path_pins or self.window_pins or self.checkpoint_pins)

    @property
    def empty(self) -> bool:
        return self.full is None and self.window is None and self.checkpoint is None

    @property
    def attached(self) -> bool:
        """Whether the node is (still) part of a tree below its root."""
        return self.parent is not None and self.parent.children.get(self.key) is self

    def up(self, count: int) -> "list[Node]":
        """This node and those above it, `count` in all, deepest first."""
        node, found = self, []
        for _ in range(count):
            found.append(node)
            assert node.parent is not None, "the root stands above all pages"
            node = node.parent
        return found
