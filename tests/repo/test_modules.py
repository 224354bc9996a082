"""Every file is small, says in its first sentence what it is, and is named by a noun of the field."""

import ast
import re
from pathlib import PurePosixPath
from statistics import median

from tests.repo.sources import Module, modules, nodes, product_modules

MEDIAN_LINES_MAX = 150
LINES_MAX = 400
REFUSED_WORDS = {"manager", "helper", "helpers", "util", "utils", "handler", "handlers", "info"}


def test_every_module_opens_with_a_sentence() -> None:
    silent = [module.path for module in modules() if not ast.get_docstring(module.tree)]
    assert not silent


def test_the_opening_sentence_ends_like_one() -> None:
    unended = []
    for module in modules():
        docstring = ast.get_docstring(module.tree) or ""
        if not docstring.split("\n\n")[0].rstrip().endswith((".", ":", ";", "?")):
            unended.append(module.path)
    assert not unended


def test_modules_are_small() -> None:
    counts = {module.path: module.line_count for module in product_modules() if module.line_count > 1}
    middle = median(counts.values())
    print(f"median module length: {middle} lines over {len(counts)} modules")
    assert middle <= MEDIAN_LINES_MAX
    assert not {path: count for path, count in counts.items() if count > LINES_MAX}


def test_nothing_is_named_after_no_noun() -> None:
    refused = [
        f"{module.path}: {name}"
        for module in modules()
        for name in _defined_names(module)
        if REFUSED_WORDS & set(_words(name)) or name.startswith("Base")
    ]
    assert not refused


def _defined_names(module: Module) -> list[str]:
    names = [*PurePosixPath(module.path).with_suffix("").parts]
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names += [node.name for node in nodes(module) if isinstance(node, definitions)]
    return names


def _words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
