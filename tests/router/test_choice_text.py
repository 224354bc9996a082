"""Text, stop strings and reports of one choice agree, however its tokens arrive."""

from hypothesis import example, given
from hypothesis import strategies as st

from router.choice_text import ChoiceText
from router.inbox import Arrivals
from router.openai.plan import PlannedChoice, TextOptions
from router.text.stop_strings import StopAutomaton
from segue.batch.sampling import SamplingParams
from tests.router.served import tokenizer

letters = st.text("abc é🍎", max_size=30)
cuts = st.lists(st.integers(1, 4), min_size=1, max_size=8)


def choice_text(stops: tuple[str, ...], *, include: bool, logprobs: int | None) -> ChoiceText:
    options = TextOptions(
        echo=False, stops=StopAutomaton(stops) if stops else None, include_stop=include, skip_special_tokens=True
    )
    choice = PlannedChoice(index=0, prompt_number=0, prompt=(5,), sampling=SamplingParams(seed=1, logprobs=logprobs))
    return ChoiceText(tokenizer().token_bytes, tokenizer().special_ids, options, choice)


def naive(text: str, stops: tuple[str, ...], include: bool) -> str | None:
    """The kept text, by looking at every prefix in turn; None when no stop string occurs."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[:end] if include else text[: end - max(map(len, found))]
    return None


@given(letters, st.lists(st.text("abc é🍎", min_size=1, max_size=3), max_size=2).map(tuple), cuts, st.booleans())
@example("aa ", ("a ",), [1], False)
def test_text_and_reports_are_those_of_the_whole_output_cut_at_the_first_stop(
    text: str, stops: tuple[str, ...], sizes: list[int], include: bool
) -> None:
    tokens = tokenizer().encode(text)
    choice = choice_text(stops, include=include, logprobs=0)
    got, reported, released = "", [], 0
    place = 0
    while choice.stopped_at is None and place < len(tokens):
        part = tokens[place : place + sizes[place % len(sizes)]]
        place += len(part)
        piece = choice.push(Arrivals(part, [-0.5] * len(part), [()] * len(part)))
        got += piece.text
        assert piece.reports is not None
        # At a stop string the last kept text may have gone out before it was known to be kept.
        assert piece.text or not piece.reports or choice.stopped_at is not None, "reported without their text"
        reported += piece.reports
        released = len(got)
        assert all(report.offset <= released for report in reported)
    if choice.stopped_at is None:
        piece = choice.finish()
        got += piece.text
        reported += piece.reports or []
    expected = naive(text, stops, include)
    assert got == (text if expected is None else expected)
    assert (choice.stopped_at is None) == (expected is None)
    kept = len(tokens) if choice.stopped_at is None else choice.stopped_at
    assert b"".join(report.token.data for report in reported) == b"".join(
        tokenizer().token_bytes[token] for token in tokens[:kept]
    )
    covered = tokenizer().decode(tokens[:kept]).rstrip("\ufffd")
    assert covered.startswith(got)
    if kept:
        assert not tokenizer().decode(tokens[: kept - 1]).rstrip("\ufffd").startswith(got) or not got


@given(letters, cuts)
def test_without_stops_and_logprobs_the_text_is_the_same(text: str, sizes: list[int]) -> None:
    tokens = tokenizer().encode(text)
    choice = choice_text((), include=False, logprobs=None)
    got = ""
    place = 0
    while place < len(tokens):
        part = tokens[place : place + sizes[place % len(sizes)]]
        place += len(part)
        piece = choice.push(Arrivals(part))
        assert piece.reports is None
        got += piece.text
    assert got + choice.finish().text == text
    assert choice.token_count == len(tokens)


def test_no_byte_is_reported_of_a_character_that_a_stop_string_then_cuts_off() -> None:
    tokens = tokenizer().encode("a🍎b")
    choice = choice_text(("🍎",), include=False, logprobs=0)
    pieces = [choice.push(Arrivals(part, [-0.5] * len(part), [()] * len(part))) for part in (tokens[:2], tokens[2:])]
    assert choice.stopped_at == 1
    assert "".join(piece.text for piece in pieces) == "a"
    assert [report.token.data for piece in pieces for report in piece.reports or []] == [b"a"]
