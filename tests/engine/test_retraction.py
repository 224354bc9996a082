"""Requests that leave the device and come back: who, in which order, and with everything that they carry."""

from dataclasses import replace

import pytest

from segue.batch.lifecycle import Phase
from segue.batch.ratio import RetractionRules
from segue.batch.request import FinishReason
from segue.batch.retraction import victim
from segue.batch.role import Role
from segue.errors import DeadlineExceeded
from segue.ids import Handle
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.engine.test_receiving import reserve
from tests.support.policies import Rig, rig, spec

OPTIMIST = RetractionRules(ratio_start=0.0, ratio_floor=0.0)
"""Lets everybody in who fits now with the headroom: memory is sure to become short."""


def tight(*, pages: int = 24, backups: int = 9, slow: bool = False, rules: RetractionRules = OPTIMIST) -> Rig:
    """Room for one request and a half of 64 tokens."""
    return rig(page_tokens=4, pages=pages, max_len=64, backups=backups, slow=slow, rules=rules, slots=8, max_running=8)


def run(made: Rig) -> dict[Handle, list[int]]:
    """Tokens of every request from now on until all have ended, by length alone."""
    outputs: dict[Handle, list[int]] = {}
    begun = {one.handle: len(one.output) for one in made.engine.live_requests()}
    for _ in range(1000):
        if made.engine.idle:
            return outputs
        record = made.engine.launch()
        if record is None:
            continue
        news = made.engine.commit(record)
        made.engine.check()
        for handle, index, token in zip(news.handles, news.indices, news.tokens, strict=True):
            assert index == begun[handle] + len(outputs.setdefault(handle, []))
            outputs[handle].append(token.token_id)
        assert all(one.reason is FinishReason.LENGTH for one in news.ended)
    raise AssertionError("a request starved")


def submit(made: Rig, number: int, *, prompt: int = 20, max_tokens: int = 40, priority: int = 0) -> Handle:
    for index in range(max_tokens):
        made.runner.script[f"q{number}", index] = 10 + (number * 7 + index) % 50
    made.engine.submit(
        spec(f"q{number}", prompt, max_tokens=max_tokens, priority=priority, ignore_eos=True), Handle(number)
    )
    return Handle(number)


def running(made: Rig, phase: Phase) -> set[Handle]:
    return {one.handle for one in made.engine.live_requests() if one.phase is phase}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("backups", [0, 1, 9])
def test_when_memory_is_short_everybody_ends_with_the_tokens_of_an_undisturbed_run(backups: int, slow: bool) -> None:
    made = tight(backups=backups, slow=slow)
    handles = [submit(made, number) for number in range(1, 5)]
    outputs = run(made)
    assert outputs == {h: [10 + (h * 7 + index) % 50 for index in range(40)] for h in handles}
    figures = made.engine.status().retraction
    assert figures.by_memory == figures.resumed + figures.recomputed > 0
    assert figures.resumed_extend_tokens == 0
    assert (figures.recomputed_tokens > 0) == (figures.recomputed > 0) == (backups == 0)
    made.require_whole()


def test_a_forced_retraction_takes_somebody_off_on_every_third_step_that_decodes_more_than_one() -> None:
    made = tight(pages=200, rules=RetractionRules(forced_every=3))
    submit(made, 1, max_tokens=13)
    submit(made, 2, max_tokens=13)
    run(made)
    figures = made.engine.status().retraction
    assert figures.by_test == figures.resumed > 2
    assert (figures.by_memory, figures.recomputed, figures.recomputed_tokens) == (0, 0, 0)


def test_what_is_computed_again_is_counted_once_for_every_position() -> None:
    made = tight(pages=200, backups=0, rules=RetractionRules(forced_every=3))
    submit(made, 1, max_tokens=5)
    submit(made, 2, max_tokens=5)
    while not made.engine.status().retraction.by_test:
        made.step()
    deepest = max(one.deepest for one in made.engine.live_requests())
    run(made)
    figures = made.engine.status().retraction
    assert figures.recomputed_tokens == deepest * figures.recomputed == deepest


def test_a_backup_that_comes_back_changed_is_not_continued_but_computed_again() -> None:
    made = tight(pages=200, rules=RetractionRules(forced_every=3))
    assert made.store is not None
    made.store.breaks = True
    handles = [submit(made, 1, max_tokens=9), submit(made, 2, max_tokens=9)]
    outputs = run(made)
    assert outputs == {h: [10 + (h * 7 + index) % 50 for index in range(9)] for h in handles}
    figures = made.engine.status().retraction
    assert figures.mismatched == figures.recomputed == figures.by_test > 0
    assert figures.resumed == 0
    made.require_whole()


def test_victims_are_of_lowest_priority_then_of_fewest_tokens_then_of_the_longest_prompt() -> None:
    made = tight(pages=200)
    submit(made, 1, prompt=8)
    submit(made, 2, prompt=8, priority=-1)
    made.step()
    made.step()
    submit(made, 3, prompt=5)
    submit(made, 4, prompt=4)
    for _ in range(6):
        made.step()
    submit(made, 5, prompt=8, priority=1)
    for _ in range(3):
        made.step()
    requests = list(made.engine.live_requests())
    three, four = (next(one for one in requests if one.handle == number) for number in (3, 4))
    assert len(three.output) == len(four.output), "a tie, but for their prompts"
    order = []
    while (one := victim(requests)) is not None:
        order.append(int(one.handle))
        requests.remove(one)
    assert order == [2, 3, 4, 1]
    assert [int(one.handle) for one in requests] == [5], "the last one stays"


def test_a_request_that_is_read_from_outside_stays() -> None:
    made = tight(pages=200)
    submit(made, 1)
    submit(made, 2)
    for _ in range(12):
        made.step()
    first, second = made.engine.live_requests()
    assert victim([first, second]) is second
    made.engine.pin(second.handle, 1)
    assert victim([first, second]) is first
    made.engine.pin(first.handle, 1)
    assert victim([first, second]) is None


def test_nobody_new_is_let_in_while_somebody_waits_to_come_back() -> None:
    made = tight(pages=200, slow=True, rules=RetractionRules(forced_every=3))
    submit(made, 1)
    submit(made, 2)
    while not running(made, Phase.RETRACTED):
        made.step()
    submit(made, 9, prompt=1, max_tokens=1)
    for _ in range(3):
        made.step()
        assert running(made, Phase.WAITING) == {Handle(9)}
    run(made)
    made.require_whole()


def test_nobody_else_leaves_where_units_will_be_free_soon() -> None:
    made = tight(slow=True, rules=RetractionRules(headroom_steps=1, ratio_start=0.0, ratio_floor=0.0))
    for number, prompt in ((1, 17), (2, 20), (3, 19)):
        submit(made, number, prompt=prompt)
    while not running(made, Phase.RETRACTED):
        made.step()
    assert running(made, Phase.RETRACTED) == {Handle(3)}, "for the first, which waits for a page"
    steps = made.engine.status().steps
    made.step()
    made.step()
    assert made.engine.status().steps == steps + 2, "the others go on"
    assert made.engine.status().retraction.by_memory == 1
    run(made)
    made.require_whole()


def test_requests_come_back_in_the_order_in_which_they_left() -> None:
    made = tight(pages=200)
    for number in range(1, 5):
        submit(made, number)
    for _ in range(12):
        made.step()
    retraction = made.retraction
    assert retraction is not None
    order = [Handle(3), Handle(1), Handle(4)]
    for handle in order:
        request = next(one for one in made.engine.live_requests() if one.handle == handle)
        made.take_off(request)
    back: list[Handle] = []
    while (head := retraction.head) is not None:
        back.append(head.request.handle)
        retraction.bring_back()
    assert back == order
    assert [one.handle for one in retraction.settle()] == order


def test_the_usage_of_a_recomputed_request_is_that_of_its_first_start() -> None:
    made = rig(
        page_tokens=4, pages=200, slots=20, backups=0, cached=True, rules=RetractionRules(forced_every=3), max_len=64
    )
    for number in (1, 2):
        prompt = [number * 20 + i % 17 for i in range(20)]
        made.engine.submit(spec(f"q{number}", prompt, max_tokens=40), Handle(number))
    ended = []
    while not made.engine.idle:
        if (record := made.engine.launch()) is not None:
            ended += made.engine.commit(record).ended
    assert made.engine.status().retraction.recomputed > 0
    figures = made.engine.status()
    depths = 20 * figures.retraction.recomputed
    assert figures.retraction.recomputed_tokens < depths, "it finds its own prefix cached"
    assert (figures.cache.looked_up_tokens, figures.cache.hits) == (40, ()), "which is no use of the cache"
    assert [one.usage.cached_tokens for one in ended] == [0, 0]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("how", ["cancel", "finish", "deadline"])
def test_a_request_may_end_while_it_is_off_the_device(how: str, slow: bool) -> None:
    made = tight(slow=slow)
    for number in range(1, 4):
        submit(made, number, prompt=18 + number)
    while not (away := running(made, Phase.RETRACTED)):
        made.step()
    assert made.store is not None
    assert bool(made.store.outward) == slow
    (handle,) = away
    request = next(one for one in made.engine.live_requests() if one.handle == handle)
    match how:
        case "cancel":
            made.engine.cancel(handle, 1)
        case "finish":
            made.engine.finish(handle, 1, 1)
        case _:
            request.deadline = made.clock.now
            made.engine.expire()
    (ended,) = made.engine.take_ended()
    assert ended.handle == handle
    if how == "finish":
        assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.STOP, 1)
    if how == "deadline":
        assert isinstance(ended.error, DeadlineExceeded)
    made.engine.check()
    run(made)
    made.require_whole()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("backups", [0, 9])
@pytest.mark.parametrize("forced_every", [0, 1, 2, 5])
def test_requests_of_just_the_size_of_the_pool_reach_their_ends(backups: int, cached: bool, forced_every: int) -> None:
    rules = RetractionRules(ratio_start=0.0, ratio_floor=0.0, forced_every=forced_every)
    made = rig(
        page_tokens=4,
        pages=16,
        window_pages=40,
        max_len=64,
        max_running=2,
        slots=8,
        backups=backups,
        cached=cached,
        rules=rules,
    )
    submit(made, 1, prompt=24, max_tokens=40)
    submit(made, 2, prompt=24, max_tokens=40)
    run(made)
    made.require_whole()


def test_a_retraction_raises_the_estimate_and_quiet_steps_lower_it_to_its_floor() -> None:
    made = rig(page_tokens=4, pages=24, max_len=64, backups=9, rules=RetractionRules(ratio_start=0.2, ratio_floor=0.1))
    for number in range(1, 4):
        submit(made, number)
    ratio = made.ratio
    assert ratio is not None
    while not made.engine.status().retraction.by_memory:
        before = ratio.value
        made.step()
    assert ratio.value > before
    run(made)
    submit(made, 5, prompt=4, max_tokens=60)
    before = ratio.value
    made.step()
    assert 0.1 <= ratio.value <= before


def test_a_model_without_paged_state_is_never_short_of_memory() -> None:
    made = rig(components=frozenset({ComponentName.RECURRENT}), backups=9, rules=OPTIMIST, slots=4)
    for number in range(1, 9):
        submit(made, number)
    run(made)
    assert made.engine.status().retraction.retractions == 0
    made.require_whole()


def test_the_scores_of_a_prompt_that_is_computed_again_are_told_once() -> None:
    made = tight(pages=200, backups=0, rules=RetractionRules(forced_every=3))
    for number in (1, 2):
        asked = spec(f"q{number}", 20, max_tokens=9, ignore_eos=True)
        scored = replace(asked, sampling=replace(asked.sampling, logprobs=0), score_from=0)
        made.engine.submit(scored, Handle(number))
    told: dict[Handle, list[int]] = {Handle(1): [], Handle(2): []}
    while not made.engine.idle:
        if (record := made.engine.launch()) is not None:
            for one in made.engine.commit(record).scores:
                told[one.handle] += range(one.scores.first, one.scores.stop)
    assert made.engine.status().retraction.recomputed > 0
    assert list(told.values()) == [list(range(1, 20))] * 2
    made.require_whole()


def test_whom_a_quarantine_kept_out_is_promised_room_when_it_ends_though_nothing_runs() -> None:
    made = rig(role=Role.DECODE, page_tokens=4, pages=20, slots=8, cached=True, backups=9)
    first, second = Handle(1), Handle(2)
    made.engine.expect(spec("q1", 9, max_tokens=4), first)
    made.engine.ask(first, 1)
    made.step()
    (request,) = made.engine.take_promised()
    made.engine.receive(first, 1, reserve(made, request), EmittedToken(9, 0.0), cached_tokens=0, expected=8)
    made.engine.cancel(first, 1)
    fenced = made.pools[ComponentName.FULL].alloc(14, Owner.QUARANTINED)
    made.engine.expect(spec("q2", 20, max_tokens=4), second)
    made.engine.ask(second, 1)
    made.step()
    assert made.engine.take_promised() == []
    made.pools[ComponentName.FULL].free(fenced, Owner.QUARANTINED)
    made.step()
    assert [one.handle for one in made.engine.take_promised()] == [second], (
        "the first one's checkpoint is still to come"
    )
    made.engine.cancel(second, 1)
    made.engine.give_up_checkpoint(first)
    made.require_whole()
