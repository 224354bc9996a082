"""The files of the repository as these tests see them: parsed modules and texts, nothing that git ignores."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("segue", "kv_transfer", "prefill_service", "decode_service", "router", "deploy")
GENERATED = "segue/v1/"


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: its path from the root with `/`, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def line_count(self) -> int:
        return self.text.count("\n")


@cache
def files() -> tuple[str, ...]:
    """Every file that is or would be committed, from the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(sorted({path for path in listed if (ROOT / path).is_file()}))


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file but generated ones."""
    paths = [path for path in files() if path.endswith(".py") and not path.startswith(GENERATED)]
    texts = [(path, (ROOT / path).read_text()) for path in paths]
    return tuple(Module(path, text, ast.parse(text, path)) for path, text in texts)


def product_modules() -> tuple[Module, ...]:
    """The modules of the packages that are served, without tests and benchmarks."""
    return tuple(module for module in modules() if module.package in PRODUCT)


def modules_of_tests() -> tuple[Module, ...]:
    """The modules under tests/, these included."""
    return tuple(module for module in modules() if module.package == "tests")


def texts() -> Iterator[tuple[str, str]]:
    """Path and content of every file that is text."""
    for path in files():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


@cache
def nodes(module: Module) -> tuple[ast.AST, ...]:
    """The whole syntax tree of a module, which several tests look through."""
    return tuple(ast.walk(module.tree))


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute expression; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return ""


def calls(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the dotted name of what it calls."""
    for node in nodes(module):
        if isinstance(node, ast.Call):
            yield node, dotted_name(node.func)


def imported_names(module: Module) -> Iterator[str]:
    """The dotted module names that a module imports, wherever it does."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
