"""A child's reports reach its supervisor as they were, between whatever else it prints."""

import io

import pytest

from deploy.console import Console
from deploy.reports import Loading, Planned, Ready, Report, Reporter, decode, encode


@pytest.mark.parametrize("report", [Loading(3, 9), Planned("two\nlines"), Ready("127.0.0.1:8000")])
def test_a_report_survives_its_line(report: Report) -> None:
    line = encode(report)
    assert "\n" not in line
    assert decode(line) == report


@pytest.mark.parametrize("line", ["", "hello", '{"kind": "ready"}', " @segue {}"])
def test_other_output_is_no_report(line: str) -> None:
    assert decode(line) is None


def test_a_person_reads_prose() -> None:
    stream = io.StringIO()
    report = Reporter(stream, for_supervisor=False)
    report(Loading(12_300_000, 24_000_000))
    report(Ready("127.0.0.1:1"))
    assert stream.getvalue() == "loading weights: 12.3 of 24.0 MB\nready on 127.0.0.1:1\n"


def test_off_a_terminal_progress_is_shown_once() -> None:
    stream = io.StringIO()
    listener = Console(stream).listener("worker 0")
    for done in (1, 2, 3):
        listener(Loading(done * 10**6, 3 * 10**6))
    assert stream.getvalue() == "segue: worker 0: loading weights: 3.0 of 3.0 MB\n"


class Terminal(io.StringIO):
    """A stream that a person watches."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_progress_stays_on_its_line() -> None:
    stream = Terminal()
    console = Console(stream)
    listener = console.listener("worker 0")
    listener(Loading(10**6, 3 * 10**6))
    listener(Loading(3 * 10**6, 3 * 10**6))
    console.say("done")
    assert stream.getvalue().count("\n") == 2
    assert stream.getvalue().endswith("\nsegue: done\n")
