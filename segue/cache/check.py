"""Asserts that a prefix tree is whole: exact pins and needs, one owner per unit, kept checkpoints resumable."""

from collections import Counter
from collections.abc import Iterator, Mapping

from segue.cache.node import Node
from segue.cache.tree import PrefixTree
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName


def check_tree(tree: PrefixTree, pools: Mapping[ComponentName, Pool]) -> None:
    """Walks everything; slow, for tests and debugging."""
    nodes = list(_nodes(tree))
    shape, forest = tree.shape, tree.forest
    paths, windows, checkpoints, needs = Counter[Node](), Counter[Node](), Counter[Node](), Counter[Node]()
    for lease in tree.leases:
        paths[lease.anchor] += 1
        windows.update(lease.used.values())
        windows.update(lease.kept_window)
        for index, used in lease.used.items():
            assert used.pages == index + 1
            assert _above(lease.anchor, used), "a window page in use is not on the request's path"
        if lease.kept is None:
            assert not lease.kept_window
            continue
        checkpoints[lease.kept] += 1
        assert lease.kept.checkpoint is not None, "the kept checkpoint is gone"
        assert list(lease.kept_window) == forest.window_nodes(lease.kept)
        assert all(node.window is not None for node in lease.kept_window), "the kept checkpoint lost its window"
        assert _above(lease.anchor, lease.kept), "the kept checkpoint is not on the request's path"
    for node in nodes:
        if node.checkpoint is not None:
            needs.update(forest.window_nodes(node))
    for node in nodes:
        assert node.path_pins == paths.pop(node, 0), f"path pins of page {node.pages}"
        assert node.window_pins == windows.pop(node, 0), f"window pins of page {node.pages}"
        assert node.checkpoint_pins == checkpoints.pop(node, 0), f"checkpoint pins of page {node.pages}"
        assert node.window_needs == needs.pop(node, 0), f"window needs of page {node.pages}"
        assert node.window is not None or not (node.window_pins or node.window_needs)
        assert node.checkpoint is not None or not node.checkpoint_pins
        assert (node.full is not None) == (shape.full and node.parent is not None)
        assert node.children or node.pinned or not node.empty, "a node that holds nothing and leads nowhere"
        if shape.recurrent and node.window is not None:
            assert node.window_needs or node.window_pins, "a window page that nobody needs"
        if node.checkpoint is not None:
            assert node.pages * shape.page_tokens % shape.grid == 0 or shape.page_tokens == 1
            assert all(needed.window is not None for needed in forest.window_nodes(node))
    forest.check_orders([node for node in nodes if node.parent is not None])
    assert not paths + windows + checkpoints + needs, "something outside the tree is pinned or needed"
    for component, name in ((name, name.value) for name in pools):
        attribute = "checkpoint" if component is ComponentName.RECURRENT else name
        units = [unit for node in nodes if (unit := getattr(node, attribute)) is not None]
        assert len(units) == len(set(units)), f"two nodes hold the same unit of {name}"
        assert all(pools[component].owner(unit) is Owner.CACHED for unit in units), f"{name}: not the tree's"
        assert len(units) == pools[component].counts().cached, f"{name}: cached units outside the tree"


def _nodes(tree: PrefixTree) -> Iterator[Node]:
    stack = list(tree.forest.roots.values())
    assert all(root.parent is None and root.pages == 0 for root in stack)
    while stack:
        node = stack.pop()
        yield node
        for key, child in node.children.items():
            assert child.parent is node
            assert child.key == key
            assert child.pages == node.pages + 1
            stack.append(child)


def _above(node: Node, other: Node) -> bool:
    """Whether `other` is `node` or stands above it."""
    return other.pages <= node.pages and node.up(node.pages - other.pages + 1)[-1] is other
