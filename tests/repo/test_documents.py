"""The documents link to files, symbols and headings that exist, and say what they must."""

import ast
import re
from pathlib import Path

import pytest

from tests.repo.sources import ROOT, files

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENTS = [path for path in files() if path.endswith(".md")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    broken = [link for link in LINK.findall(text) + IMAGE.findall(text) if not _leads_somewhere(document, link)]
    assert not broken


def test_the_lifecycle_has_eight_steps_each_with_a_link_into_the_code() -> None:
    text = (ROOT / "docs/lifecycle.md").read_text()
    steps = re.split(r"^## \d\. ", text, flags=re.MULTILINE)[1:]
    assert len(steps) == 8
    assert not [step.splitlines()[0] for step in steps if ".py#" not in step]


def test_the_readme_names_the_two_commands_and_shows_the_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make serve" in text
    assert "make test" in text
    assert IMAGE.findall(text)


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_every_decision_record_has_its_four_parts() -> None:
    records = [path for path in files() if re.match(r"docs/adr/\d{4}-", path)]
    assert records
    for record in records:
        text = (ROOT / record).read_text()
        for part in ("## Context", "## Decision", "## Consequences", "## Revisit when"):
            assert part in text, f"{record} lacks {part}"


def _leads_somewhere(document: str, link: str) -> bool:
    if "://" in link:
        return True
    path, _, anchor = link.partition("#")
    target = (ROOT / document).parent / path if path else ROOT / document
    if not target.exists():
        return False
    return not anchor or anchor in (_symbols(target) if target.suffix == ".py" else _headings(target))


def _symbols(path: Path) -> set[str]:
    """Names defined at the top of a module, and `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *(f"{node.name}.{member.name}" for member in members)}
    return found


def _headings(path: Path) -> set[str]:
    """Anchors of a document's headings, as they are made from the heading's text."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
