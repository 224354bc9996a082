"""A report says what was measured, on what, at which commit; where a check failed there is none."""

from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import handoff, overhead
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.accuracy import count_differing, count_unexplained
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.prompts import problem_messages
from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from benchmarks.serve import check_answers
from benchmarks.server import serving
from benchmarks.streaming import Answer


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_named_like_its_module(name: str) -> None:
    assert name == import_module(f"benchmarks.{name}").NAME


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in BENCHMARKS)


@pytest.mark.long
def test_a_server_that_cannot_start_gives_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    absent = str(tmp_path / "no-such-model")
    assert main(["accuracy", "--model", absent, "--problems", "1", "--json", str(report)]) == 1
    shown = capsys.readouterr()
    assert "gives no figure" in shown.err
    assert shown.out == ""
    assert not report.exists()


def test_a_given_address_is_used_as_it_is() -> None:
    with serving(Namespace(url="http://127.0.0.1:9/", model=None, deterministic=False)) as url:
        assert url == "http://127.0.0.1:9"


def test_machine_and_commit_are_known() -> None:
    machine = describe_machine()
    assert set(machine) == {"cpu", "cores", "python", "torch", "omp_wait_policy"}
    assert all(machine.values())
    assert describe_commit()


def test_answers_that_differ_are_counted() -> None:
    assert count_differing(["four", "5", "six"], ["four", "five", "six"]) == 1
    assert count_differing([[-0.5], [-0.5]], [[-0.5], [-0.5000001]]) == 1


def test_an_answer_that_turns_at_a_near_tie_is_explained() -> None:
    theirs, leads = [["a", "b", "c"]] * 4, [[9.0, 5e-4, 9.0]] * 4
    assert count_unexplained([["a", "b", "c"], ["a", "x", "c"]], theirs[:2], leads[:2]) == 0
    assert count_unexplained([["a", "b", "x"], ["x", "b", "c"], ["a", "b"], ["a", "x"]], theirs, leads) == 3


def test_runs_of_other_lengths_are_not_compared() -> None:
    with pytest.raises(Refused, match="has 1 answers, this one has 2"):
        count_differing(["four", "five"], ["four"])


def answer(text: str, output_tokens: int = 4) -> Answer:
    return Answer(0.0, (1.0,), 2.0, text, "length", 3, output_tokens)


def test_a_short_answer_is_no_measurement() -> None:
    with pytest.raises(Refused, match="1 answers have not 4 tokens"):
        check_answers([answer("a"), answer("b", 3)], {}, 4)


def test_answers_that_change_under_load_are_no_measurement() -> None:
    seen: dict[int, str] = {}
    check_answers([answer("a"), answer("b")], seen, 4)
    check_answers([answer("a"), answer("b"), answer("c")], seen, 4)
    with pytest.raises(Refused, match="1 of 3 answers changed"):
        check_answers([answer("a"), answer("x"), answer("c")], seen, 4)


def test_every_problem_has_worked_examples_of_its_own() -> None:
    first, second = problem_messages(0, 0, 2), problem_messages(0, 1, 2)
    assert [turn["role"] for turn in first] == ["user", "assistant", "user", "assistant", "user"]
    assert not {turn["content"] for turn in first} & {turn["content"] for turn in second}


def test_times_are_shown_in_milliseconds() -> None:
    assert milliseconds([0.001, 0.002, 0.003], 0.5) == 2.0


def test_a_cached_prompt_is_no_measurement() -> None:
    cached = replace(answer("a"), cached_tokens=2)
    with pytest.raises(Refused, match="cached"):
        handoff._check({"both": answer("a"), "nixl": cached}, 3)
    with pytest.raises(Refused, match="cached"):
        overhead._check(["a"], [cached], 4)
