"""Each benchmark over HTTP runs to a figure against a server of its own, small."""

import json

import pytest

from benchmarks.__main__ import main

pytestmark = pytest.mark.cluster


def report_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["benchmark"] == arguments[0]
    assert isinstance(report["figures"], dict)
    return report["figures"]


def test_serve_measures_each_number_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    figures = report_of(["serve", "--clients", "1", "2", "--requests", "1", "--output", "4"], capsys)
    assert set(figures) == {"clients_1", "clients_2"}


def test_accuracy_repeats_its_answers_in_deterministic_mode(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved = str(tmp_path_factory.mktemp("answers") / "answers.json")
    common = ["accuracy", "--problems", "2", "--deterministic"]
    report_of([*common, "--concurrency", "1", "--save", saved], capsys)
    figures = report_of([*common, "--concurrency", "4", "--compare", saved], capsys)
    assert (figures["differing_answers"], figures["differing_logprobs"]) == (0, 0)


def test_overhead_compares_streams_with_the_bare_runner(capsys: pytest.CaptureFixture[str]) -> None:
    figures = report_of(
        ["overhead", "--streams", "2", "--prompt", "32", "--output", "8", "--rounds", "1", "--deterministic"], capsys
    )
    assert isinstance(figures["added_cost"], float)
