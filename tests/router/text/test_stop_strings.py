"""Stop strings: found at any cutting into tokens, held back no longer than needed, kept tokens counted exactly."""

from hypothesis import given
from hypothesis import strategies as st

from router.text.stop_strings import StopAutomaton, StopMatch, StopStrings

stops = st.lists(st.text("ab-", min_size=1, max_size=5), max_size=5)
pieces = st.lists(st.text("ab-", max_size=4), max_size=30)


def first_match(text: str, candidates: list[str], start: int) -> tuple[int, str] | None:
    """By definition: the match that ends first, and of those the longest."""
    for end in range(start, len(text) + 1):
        found = [stop for stop in candidates if text[start:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def least_tokens(texts: list[str], length: int) -> int:
    return next(count for count in range(len(texts) + 1) if len("".join(texts[:count])) >= length)


@given(pieces, stops, st.booleans(), st.integers(0, 4))
def test_any_cutting_into_tokens_gives_what_a_search_of_the_whole_text_gives(
    texts: list[str], candidates: list[str], kept: bool, min_tokens: int
) -> None:
    matcher = StopStrings(StopAutomaton(candidates), kept_in_output=kept, min_tokens=min_tokens)
    sent = ""
    for text in texts:
        sent += matcher.push(text)
        if matcher.match:
            break
    else:
        sent += matcher.finish("")
    whole = "".join(texts)
    expected = first_match(whole, candidates, len("".join(texts[:min_tokens])))
    if expected is None:
        assert matcher.match is None
        assert sent == whole
        return
    end, stop = expected
    length = end if kept else end - len(stop)
    assert sent == whole[:length]
    assert matcher.match == StopMatch(stop, least_tokens(texts, length))


@given(pieces, stops)
def test_what_is_held_back_is_exactly_what_may_begin_a_stop_string(texts: list[str], candidates: list[str]) -> None:
    matcher = StopStrings(StopAutomaton(candidates))
    sent = seen = ""
    for text in texts:
        sent += matcher.push(text)
        seen += text
        if matcher.match:
            return
        suffixes = [seen[start:] for start in range(len(seen) + 1)]
        longest = next(s for s in suffixes if any(stop.startswith(s) for stop in candidates) or not s)
        assert sent + longest == seen


def test_a_stop_string_over_three_tokens_keeps_the_tokens_before_it() -> None:
    matcher = StopStrings(StopAutomaton(["STOP"]))
    assert [matcher.push(text) for text in ["Hello", " S", "T"]] == ["Hello", " ", ""]
    assert matcher.push("OP!") == ""
    assert matcher.match == StopMatch("STOP", 2)


def test_a_stop_string_at_the_very_start_keeps_no_token() -> None:
    matcher = StopStrings(StopAutomaton(["x"]))
    assert matcher.push("x") == ""
    assert matcher.match == StopMatch("x", 0)


def test_tokens_without_text_before_the_stop_are_not_kept() -> None:
    matcher = StopStrings(StopAutomaton(["."]))
    for text in ["a", "", ""]:
        matcher.push(text)
    assert matcher.push(".") == ""
    assert matcher.match == StopMatch(".", 1)


def test_a_stop_string_is_found_within_the_beginning_of_a_longer_one() -> None:
    matcher = StopStrings(StopAutomaton(["abac", "b"]))
    assert matcher.push("xab") == "xa"
    assert matcher.match == StopMatch("b", 1)


def test_of_stop_strings_that_end_together_the_longest_counts() -> None:
    matcher = StopStrings(StopAutomaton(["b", "ab"]))
    assert matcher.push("xab") == "x"
    assert matcher.match == StopMatch("ab", 1)


def test_a_kept_stop_string_keeps_its_last_token() -> None:
    matcher = StopStrings(StopAutomaton(["END"]), kept_in_output=True)
    assert matcher.push("the E") == "the "
    assert matcher.push("ND of it") == "END"
    assert matcher.match == StopMatch("END", 2)


def test_text_held_back_is_sent_when_the_output_ends() -> None:
    matcher = StopStrings(StopAutomaton(["###"]))
    assert matcher.push("a##") == "a"
    assert matcher.finish("") == "##"
    assert matcher.match is None


def test_the_text_of_the_end_may_complete_a_stop_string() -> None:
    matcher = StopStrings(StopAutomaton(["a\ufffd"]))
    assert matcher.push("xa") == "x"
    assert matcher.finish("\ufffd") == ""
    assert matcher.match == StopMatch("a\ufffd", 1)


def test_long_outputs_are_searched_in_constant_memory() -> None:
    matcher = StopStrings(StopAutomaton(["ab" * 20 + "c"]))
    for _ in range(5_000):
        matcher.push("ab")
        assert len(matcher._held) <= 40
        assert len(matcher._ends) <= 22
