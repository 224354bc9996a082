"""Prompts that make room while they are computed: for whom, where they wait, and that nothing is told twice."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from segue.batch.lifecycle import Phase
from segue.batch.ratio import RetractionRules
from segue.ids import Handle
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from tests.engine.test_retraction import OPTIMIST, run, running, submit, tight
from tests.support.policies import Rig, rig, spec


def beside_a_long_prompt(decoding: int, extending: int) -> tuple[Rig, Callable[[], None]]:
    """One request of a priority that decodes and needs a page, one that extends, no page left, and what frees them."""
    made = tight(pages=30, rules=RetractionRules(headroom_steps=1, ratio_start=0.0, ratio_floor=0.0))
    submit(made, 1, prompt=8, priority=decoding)
    for _ in range(6):
        made.step()
    submit(made, 2, prompt=40, max_tokens=4, priority=extending)
    made.step()
    decoder, prompt = made.engine.live_requests()
    while decoder.computed % 4:
        made.step()
    assert (decoder.phase, prompt.phase) == (Phase.DECODING, Phase.EXTENDING)
    pool = made.pools[ComponentName.FULL]
    others = pool.alloc(pool.free_count, Owner.RESERVED)
    return made, lambda: pool.free(others, Owner.RESERVED)


def test_a_prompt_of_low_priority_goes_back_into_the_queue_for_a_request_that_decodes() -> None:
    made, give_back = beside_a_long_prompt(decoding=1, extending=0)
    _, prompt = made.engine.live_requests()
    depth = prompt.computed
    assert depth > 0
    submit(made, 3, prompt=60, max_tokens=4)
    made.step()
    assert running(made, Phase.DECODING) == {Handle(1)}
    assert running(made, Phase.WAITING) == {Handle(2), Handle(3)}
    assert prompt.tables is None
    give_back()
    made.step()
    assert running(made, Phase.EXTENDING) == {Handle(2)}, "it came before the third"
    outputs = run(made)
    assert outputs[Handle(2)] == [10 + (14 + index) % 50 for index in range(4)]
    figures = made.engine.status().retraction
    assert (figures.by_memory, figures.resumed, figures.recomputed, figures.recomputed_tokens) == (1, 0, 1, depth)
    made.require_whole()


def test_of_one_priority_those_that_decode_leave_before_those_that_extend() -> None:
    made, give_back = beside_a_long_prompt(decoding=0, extending=0)
    made.step()
    assert running(made, Phase.RETRACTED) == {Handle(1)}
    assert running(made, Phase.EXTENDING) == {Handle(2)}
    give_back()
    run(made)
    made.require_whole()


def test_a_prompt_that_leaves_for_one_behind_it_is_not_computed_in_the_same_step() -> None:
    made = tight(pages=40, rules=RetractionRules(headroom_steps=1, ratio_start=0.0, ratio_floor=0.0))
    submit(made, 1, prompt=40, max_tokens=4)
    made.step()
    submit(made, 2, prompt=40, max_tokens=4, priority=1)
    made.step()
    pool = made.pools[ComponentName.FULL]
    # The first gets its next pages, the second finds none.
    others = pool.alloc(pool.free_count - 2, Owner.RESERVED)
    made.step()
    assert running(made, Phase.WAITING) == {Handle(1)}
    assert [row.request.handle for row in made.runner.plans[-1].rows] == [Handle(2)]
    pool.free(others, Owner.RESERVED)
    run(made)
    made.require_whole()


@pytest.mark.parametrize("cached", [False, True])
def test_a_scored_prompt_that_starts_anew_tells_every_score_once(cached: bool) -> None:
    made = rig(page_tokens=4, pages=40, max_len=64, backups=9, rules=OPTIMIST, slots=20, max_running=8, cached=cached)
    submit(made, 1, prompt=4, priority=1, max_tokens=50)
    made.step()
    asked = spec("q2", 40, max_tokens=4, ignore_eos=True)
    made.engine.submit(replace(asked, sampling=replace(asked.sampling, logprobs=0), score_from=2), Handle(2))
    told: list[int] = []
    left = 0
    while not made.engine.idle:
        _, prompt = (*made.engine.live_requests(), None)[:2]
        if not left and prompt is not None and prompt.phase is Phase.EXTENDING and prompt.computed > 12:
            left = prompt.computed
            made.take_off(prompt)
        if (record := made.engine.launch()) is not None:
            for one in made.engine.commit(record).scores:
                told += range(one.scores.first, one.scores.stop)
        made.engine.check()
    assert left > 12
    assert told == list(range(3, 40))
    made.require_whole()


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_nobody_leaves_for_a_prompt_that_matters_less(priority: int) -> None:
    made = tight(pages=40, rules=RetractionRules(headroom_steps=1, ratio_start=0.0, ratio_floor=0.0))
    submit(made, 1, prompt=8, priority=1)
    for _ in range(6):
        made.step()
    submit(made, 2, prompt=40, max_tokens=4, priority=priority)
    made.step()
    assert running(made, Phase.EXTENDING) == {Handle(2)}
    # Nobody can grow but at the cost of somebody else.
    pool = made.pools[ComponentName.FULL]
    others = pool.alloc(pool.free_count, Owner.RESERVED)
    prompt = next(one for one in made.engine.live_requests() if one.phase is Phase.EXTENDING)
    assert made.engine._scheduler._grow(prompt, prompt.computed + 8) == (priority > 0)
    assert running(made, Phase.RETRACTED) == ({Handle(1)} if priority else set())
    assert running(made, Phase.EXTENDING) == {Handle(2)}
    pool.free(others, Owner.RESERVED)
    run(made)
    made.require_whole()
