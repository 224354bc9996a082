"""Every import is declared, every declared package is pinned, and every direct one is explained."""

import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

from tests.repo.sources import PRODUCT, ROOT, Module, imported_names, modules

OURS = {*PRODUCT, "benchmarks", "tests"}
# Used where the machine has them; each is an extra or comes with a GPU build of torch.
OPTIONAL = {"triton"}


def test_every_import_is_pinned() -> None:
    pinned = set(_pins())
    missing = {
        (module.path, name) for module in modules() for name in _third_party(module) if not _providers(name) & pinned
    }
    assert not missing


def test_what_is_served_imports_declared_packages_only() -> None:
    declared = _declared("dependencies")
    undeclared = {
        (module.path, name)
        for module in modules()
        if module.package in PRODUCT and not module.path.startswith("segue/zoo/")
        for name in _third_party(module)
        if not _providers(name) & declared
    }
    assert not undeclared


def test_tests_and_tools_import_declared_packages_only() -> None:
    declared = _declared("dependencies") | _declared("dev")
    undeclared = {
        (module.path, name) for module in modules() for name in _third_party(module) if not _providers(name) & declared
    }
    assert not undeclared


def test_every_pin_is_exact_and_every_declared_package_has_one() -> None:
    pins = _pins()
    assert not [name for name, version in pins.items() if not re.fullmatch(r"[0-9][0-9a-z.]*", version)]
    assert not (_declared("dependencies") | _declared("dev")) - set(pins)
    assert list(pins) == sorted(pins)


def test_every_direct_dependency_is_explained_in_one_line() -> None:
    explained = re.findall(r"^\| `([^`]+)`", (ROOT / "docs/dependencies.md").read_text(), flags=re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert {_normal(name) for name in explained} == _declared("dependencies") | _declared("dev")


@cache
def _third_party(module: Module) -> frozenset[str]:
    names = set(imported_names(module))
    tops = {name.partition(".")[0] for name in names}
    if any(name.startswith("google.protobuf") for name in names):
        tops = (tops - {"google"}) | {"google.protobuf"}
    return frozenset(top for top in tops if top not in sys.stdlib_module_names and top not in OURS | OPTIONAL)


def _providers(name: str) -> set[str]:
    """The distributions that an import name comes from."""
    if name == "google.protobuf":
        return {"protobuf"}
    return {_normal(distribution) for distribution in _distributions().get(name, [])}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(separator for _, separator, _ in pairs), "a line of constraints.txt is not NAME==VERSION"
    return {_normal(name): version for name, _, version in pairs}


def _declared(group: str) -> set[str]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    return {_normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in listed}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
