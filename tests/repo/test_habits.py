"""Habits that hide bugs are not taken up: broad excepts, patched modules, sleeping tests."""

import ast

from tests.repo.sources import Module, calls, dotted_name, imported_names, modules, modules_of_tests, nodes

# The thread that owns the engine: whatever it raises ends the process in order, instead of vanishing with the thread.
SUPERVISORS = frozenset({"kv_transfer/hosting/engine_thread.py"})
# Loops that wait for another process and have nothing to await; each has a deadline.
POLLING_TESTS: frozenset[str] = frozenset()

BROAD = {"Exception", "BaseException"}
SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}


def test_only_the_supervisor_catches_everything() -> None:
    found = [f"{module.path}:{line}" for module in modules() for line in _broad_excepts(module)]
    assert not [place for place in found if place.partition(":")[0] not in SUPERVISORS]


def test_nothing_is_mocked_or_patched() -> None:
    mocking = [
        f"{module.path}: {name}"
        for module in modules_of_tests()
        for name in imported_names(module)
        if name.split(".")[0] in {"mock", "pytest_mock"} or name.startswith("unittest.mock")
    ]
    patching = [
        f"{module.path}:{call.lineno}"
        for module in modules_of_tests()
        for call, name in calls(module)
        if name in {"monkeypatch.setattr", "monkeypatch.setitem", "monkeypatch.delattr"}
    ]
    assert not mocking
    assert not patching


def test_no_test_waits_by_sleeping() -> None:
    sleeping = [
        f"{module.path}:{call.lineno}"
        for module in modules_of_tests()
        for call, name in calls(module)
        if name in SLEEPS and not _yields_only(call) and module.path not in POLLING_TESTS
    ]
    assert not sleeping


def _broad_excepts(module: Module) -> list[int]:
    """Lines of `except Exception`, `except:` and `suppress(Exception)`; one that ends in `raise` swallows nothing."""
    lines = []
    for node in nodes(module):
        caught: list[ast.expr | None] = []
        if isinstance(node, ast.ExceptHandler) and not _raises_again(node):
            caught = [*node.type.elts] if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and dotted_name(node.func).endswith("suppress"):
            caught = [*node.args]
        if any(kind is None or dotted_name(kind) in BROAD for kind in caught):
            assert isinstance(node, ast.ExceptHandler | ast.Call)
            lines.append(node.lineno)
    return lines


def _raises_again(node: ast.ExceptHandler) -> bool:
    return isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None


def _yields_only(call: ast.Call) -> bool:
    """`asyncio.sleep(0)` lets other tasks run once and waits for nothing."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
