"""Room counted for a request is never less than what is set aside for it, and it can always be computed here."""

import pytest

from segue.batch.admission import HEADROOM_TOKENS, Admission
from segue.batch.lifecycle import Phase
from segue.batch.ratio import NewTokenRatio, RetractionRules
from segue.batch.request import Request
from segue.batch.role import Role
from segue.errors import ContextTooLong
from segue.ids import Handle, Page
from segue.state.needs import window_pages_max
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from tests.support.policies import spec

NOTHING_EXPECTED = RetractionRules(headroom_steps=0, ratio_start=0.0, ratio_floor=0.0)


def admission(usable: dict[ComponentName, int], *, chunk_tokens: int = 8) -> Admission:
    """Pages of one token, and requests that are expected to put out nothing more."""
    return Admission(
        usable,
        page_tokens=1,
        window=1 if ComponentName.WINDOW in usable else None,
        chunk_tokens=chunk_tokens,
        max_len=100,
        role=Role.DECODE,
        ratio=NewTokenRatio(NOTHING_EXPECTED),
    )


def request(phase: Phase, known: int = 20) -> Request:
    made = Request.of(spec("q", known, max_tokens=40), Handle(1), 0.0)
    made.phase = phase
    return made


@pytest.mark.parametrize("page_short", [0, 1])
def test_a_promise_counts_with_the_pages_ahead_though_no_output_is_expected(page_short: int) -> None:
    ahead = 20 + HEADROOM_TOKENS
    asked = admission({ComponentName.FULL: 20 + ahead - page_short})
    promised, back = request(Phase.AWAITING), request(Phase.RETRACTED)
    assert asked.fits(back, [promised], {}) == (page_short == 0)
    assert asked.resumes(back, [promised], {}, steps=0) == (page_short == 0)


@pytest.mark.parametrize("page_short", [0, 1])
def test_pages_that_are_held_ahead_count_until_they_are_used(page_short: int) -> None:
    asked = admission({ComponentName.FULL: 60 - page_short})
    running, back = request(Phase.DECODING), request(Phase.RETRACTED)
    running.tables = StateTables(full=[Page(unit) for unit in range(1, 41)])
    assert asked.resumes(back, [running], {}, steps=0) == (page_short == 0)


@pytest.mark.parametrize("page_short", [0, 1])
def test_who_may_have_to_be_computed_here_after_all_must_fit_in_chunks(page_short: int) -> None:
    pages = window_pages_max(1, 50, 1)
    usable = {ComponentName.FULL: 100, ComponentName.WINDOW: pages - page_short}
    asked, awaited = admission(usable, chunk_tokens=50), request(Phase.AWAITING, known=55)
    if page_short:
        with pytest.raises(ContextTooLong, match="window pool"):
            asked.validate(awaited)
    else:
        asked.validate(awaited)
        awaited.phase = Phase.RETRACTED
        assert asked.resumes(awaited, [], {}, steps=20)
