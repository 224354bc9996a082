"""Whether a model keeps recurrent state is answered by `uses_ssm_state` alone; no other code finds it out by itself."""

import ast

import pytest

from tests.repo.sources import calls, dotted_name, nodes, product_modules

DEFINED_IN = "segue/state/spec.py"
# Asks which pools it was given, and gives a slot where there is a pool of slots.
OWN_POOLS = frozenset({"segue/batch/holdings.py"})
# What the answer decides: pools, tree, backend and carrier of a backup, what a step sees.
ASKING = (
    "segue/state/plan.py",
    "segue/build.py",
    "decode_service/retraction/backends.py",
    "decode_service/retraction/store.py",
    "segue/runner/assembly.py",
)
QUANTIFIERS = {"any", "all", "bool", "next", "len", "sum", "filter"}


def test_nobody_derives_it_again() -> None:
    deriving = [
        f"{module.path}:{line}"
        for module in product_modules()
        if module.path != DEFINED_IN
        for line in derivations(module.tree, own_pools=module.path in OWN_POOLS)
    ]
    assert not deriving


def test_there_is_one_such_function() -> None:
    found = [
        module.path
        for module in product_modules()
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "uses_ssm_state"
    ]
    assert found == [DEFINED_IN]


def test_whoever_decides_by_it_asks_it() -> None:
    asking = {module.path for module in product_modules() for _, name in calls(module) if name == "uses_ssm_state"}
    assert asking >= set(ASKING)


@pytest.mark.parametrize(
    "text",
    [
        "state.component(ComponentName.RECURRENT) is not None",
        "spec.component(name=spec.ComponentName.RECURRENT)",
        "ComponentName.RECURRENT in pools",
        "RECURRENT not in layouts",
        "'recurrent' in names",
        "ComponentName('recurrent') in names",
        "layouts.get(ComponentName.RECURRENT) is None",
        "(layout := layouts.get(ComponentName.RECURRENT)) is not None",
        "bool(layouts.get(ComponentName.RECURRENT))",
        "1 if layouts.get(ComponentName.RECURRENT) else 0",
        "not layouts.get(ComponentName.RECURRENT)",
        "any(spec.name is ComponentName.RECURRENT for spec in state.components)",
        "any(not spec.paged for spec in state.components)",
        "next((spec for spec in specs if spec.name == ComponentName.RECURRENT), None)",
        "len([tensor for tensor in tensors if tensor.component is ComponentName.RECURRENT])",
        "ComponentName.RECURRENT in {spec.name for spec in state.components}",
        "{ComponentName.RECURRENT} <= names",
        "names.isdisjoint({ComponentName.RECURRENT})",
    ],
)
def test_ways_to_derive_it_are_seen(text: str) -> None:
    assert derivations(ast.parse(text), own_pools=False)


@pytest.mark.parametrize(
    "text",
    [
        "uses_ssm_state(state)",
        "pools[ComponentName.RECURRENT].alloc(1)",
        "counts.get(ComponentName.RECURRENT, 1)",
        "piece.component is ComponentName.RECURRENT",
        "[row for row in rows if row.component is ComponentName.RECURRENT]",
        "state.component(ComponentName.FULL) is not None",
        "storage.zero(ComponentName.RECURRENT, slot)",
    ],
)
def test_what_handles_the_component_is_let_be(text: str) -> None:
    assert not derivations(ast.parse(text), own_pools=False)


def derivations(tree: ast.AST, *, own_pools: bool) -> list[int]:
    """Lines of expressions that find out whether there is a recurrent component."""
    lines = []
    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.Call):
            found = _asks_for_it(node) or _counts_it(node)
        elif isinstance(node, ast.Compare):
            found = _is_member(node) or (_is_none_check(node) and _looks_it_up(node.left) and not own_pools)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            found = _looks_it_up(node.test) and not own_pools
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found = _looks_it_up(node.operand) and not own_pools
        if found:
            assert isinstance(node, ast.expr | ast.stmt)
            lines.append(node.lineno)
    return lines


def _names_it(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "recurrent"
    if isinstance(node, ast.Call) and dotted_name(node.func).endswith("ComponentName"):
        return any(_names_it(argument) for argument in node.args)
    if isinstance(node, ast.Set | ast.Tuple | ast.List):
        return any(_names_it(element) for element in node.elts)
    return isinstance(node, ast.expr) and dotted_name(node).rpartition(".")[2] == "RECURRENT"


def _asks_for_it(node: ast.Call) -> bool:
    """`state.component(RECURRENT)`, `names.isdisjoint({RECURRENT})`, `bool(layouts.get(RECURRENT))`."""
    name = dotted_name(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if name in {"component", "isdisjoint", "issuperset", "issubset"}:
        return any(_names_it(argument) for argument in given)
    return name == "bool" and any(_looks_it_up(argument) for argument in given)


def _counts_it(node: ast.Call) -> bool:
    """Whether any of some components is it, or how many are."""
    if dotted_name(node.func) not in QUANTIFIERS:
        return False
    for argument in node.args:
        if not isinstance(argument, ast.GeneratorExp | ast.ListComp | ast.SetComp):
            continue
        for part in ast.walk(argument):
            if isinstance(part, ast.Attribute) and part.attr == "paged":
                return True
            if isinstance(part, ast.Compare) and any(map(_names_it, [part.left, *part.comparators])):
                return True
    return False


def _is_member(node: ast.Compare) -> bool:
    """`RECURRENT in names`, `{RECURRENT} <= names`."""
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return _names_it(node.left)
    return isinstance(node.ops[0], ast.LtE | ast.GtE | ast.Lt | ast.Gt) and any(
        isinstance(side, ast.Set) and _names_it(side) for side in (node.left, node.comparators[0])
    )


def _is_none_check(node: ast.Compare) -> bool:
    return isinstance(node.ops[0], ast.Is | ast.IsNot) and isinstance(node.comparators[0], ast.Constant)


def _looks_it_up(node: ast.expr) -> bool:
    """`layouts.get(RECURRENT)`, named or not."""
    if isinstance(node, ast.NamedExpr):
        return _looks_it_up(node.value)
    if isinstance(node, ast.Call) and dotted_name(node.func).endswith(".get"):
        return any(_names_it(argument) for argument in node.args)
    return False
