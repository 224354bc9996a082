"""The README quotes figures only from result files, and quotes them right."""

import json
import re

from tests.repo.sources import ROOT, files

# | what | value | [file](benchmarks/results/file.json) `path.to.figure` |
ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| \[[^\]]+\]\((benchmarks/results/[^)]+)\) `([^`]+)` \|$", flags=re.MULTILINE)


def test_every_quoted_figure_stands_in_its_file() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    unread = section.count("\n| ") - len(rows)
    assert unread <= 1, "a row of the table, beside its head, does not name file and figure"
    for shown, path, place in rows:
        figure = json.loads((ROOT / path).read_text())["figures"]
        for name in place.split("."):
            figure = figure[name]
        decimals = len(shown.partition(".")[2])
        assert float(shown.replace(",", "")) == round(figure, decimals), f"{place} of {path} is {figure}"


def test_every_result_names_its_machine_and_commit() -> None:
    for path in files():
        if path.startswith("benchmarks/results/") and path.endswith(".json"):
            report = json.loads((ROOT / path).read_text())
            assert set(report) == {"benchmark", "figures", "settings", "machine", "commit"}, path
