"""What an engine says of its prefix cache is what has happened in it; scripted, no tensors."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from segue.batch.request import Request
from segue.cache.figures import CacheFigures, CacheHits, ChosenPrompts
from segue.errors import ContextTooLong, QueueFull
from segue.ids import Handle
from segue.state.needs import first_window_page
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from tests.support.policies import Rig, rig, spec

PAGE, WINDOW = 4, 6
# Of the rig: checkpoints of prompts are multiples of GRID, those of decoding of INTERVAL.
GRID, INTERVAL = 2 * PAGE, 4 * PAGE
FULL, RECURRENT = ComponentName.FULL, ComponentName.RECURRENT


def figures(made: Rig) -> CacheFigures:
    return made.engine.status().cache


def run(made: Rig, handle: int, prompt: Iterable[int], *, output: int = 1) -> None:
    """A request from its start to its end, beside whatever else runs."""
    made.engine.submit(spec(f"q{handle}", tuple(prompt), max_tokens=output, ignore_eos=True), Handle(handle))
    while any(request.handle == handle for request in made.engine.live_requests()):
        made.step()


def floor_pages(request: Request) -> int:
    """Window pages of the request's table below its window."""
    assert request.tables is not None
    first = first_window_page(request.computed, WINDOW, PAGE)
    return sum(page is not None for page in request.tables.window[:first])


def test_reused_tokens_are_counted_by_the_component_that_limited_the_match() -> None:
    made = rig(cached=True)
    run(made, 1, range(20))
    assert figures(made).hits == ()
    # All but what follows the last checkpoint of the same prompt, which no match can reach beyond.
    run(made, 2, range(20))
    # Page 4 is cached, and so could more be than 16 tokens; the rest of the prompt is new.
    run(made, 3, [*range(20), *range(50, 70)])
    shown = figures(made)
    assert shown.hits == (CacheHits("full", 16), CacheHits(None, 16))
    assert shown.looked_up_tokens == 20 + 20 + 40
    assert shown.reused_tokens == 32
    assert made.engine.status().prefill_tokens == shown.looked_up_tokens - shown.reused_tokens


def test_a_match_that_lacks_a_checkpoint_is_limited_by_recurrent_state() -> None:
    made = rig(cached=True, chunk_tokens=16)
    run(made, 1, [*range(32), *range(60, 64)])
    run(made, 2, [*range(16), *range(70, 74)])
    run(made, 3, [*range(24), *range(80, 84)])
    last = figures(made)
    # The second found all pages that it could resume after; the third has 24 tokens in common, and a checkpoint at 16.
    assert last.hits == (CacheHits("recurrent", 16), CacheHits(None, 16))
    assert last.checkpoints_resumed == 2


def test_a_checkpoint_is_taken_once_and_computed_twice_is_a_duplicate() -> None:
    made = rig(cached=True)
    for handle in (1, 2):
        made.engine.submit(spec(f"q{handle}", 3, max_tokens=14, ignore_eos=True), Handle(handle))
    while not made.engine.idle:
        made.step()
    shown = figures(made)
    # Both decode the same tokens in the same steps, and end at 16, where each has its checkpoint.
    assert (shown.checkpoints_taken, shown.checkpoints_duplicate) == (1, 1)
    assert (shown.checkpoints_skipped, shown.checkpoints_evicted, shown.checkpoints_resumed) == (0, 0, 0)
    assert made.pools[RECURRENT].counts().cached == 1


def test_a_checkpoint_without_a_slot_is_skipped_and_counted() -> None:
    made = rig(cached=True)
    made.engine.submit(spec("a", 3, max_tokens=20, ignore_eos=True), Handle(1))
    made.step()
    slots = made.pools[RECURRENT]
    reserved = slots.alloc(slots.free_count, Owner.RESERVED)
    while not made.engine.idle:
        made.step()
    shown = figures(made)
    assert (shown.checkpoints_taken, shown.checkpoints_skipped) == (0, 1)
    slots.free(reserved, Owner.RESERVED)
    made.engine.check()


def test_checkpoints_that_give_way_are_counted() -> None:
    made = rig(cached=True, slots=3, max_running=1)
    for number in range(4):
        run(made, number + 1, range(100 * number % 97, 100 * number % 97 + 20))
    shown = figures(made)
    assert shown.checkpoints_evicted > 0
    assert shown.checkpoints_taken - shown.checkpoints_evicted == made.pools[RECURRENT].counts().cached


def test_what_the_floor_keeps_is_what_lies_below_the_windows_of_those_who_run() -> None:
    made = rig(cached=True, max_len=120, pages=100, window_pages=100, slots=12)
    for handle, length in ((1, 10), (2, 21)):
        prompt = tuple(range(handle, handle + length))
        made.engine.submit(spec(f"q{handle}", prompt, max_tokens=60, ignore_eos=True), Handle(handle))
    most = total = rows = 0
    seen = set()
    while made.engine.live_requests():
        record = made.engine.launch()
        assert record is not None
        made.engine.commit(record)
        made.engine.check()
        kept = {request.handle: floor_pages(request) for request in made.engine.live_requests() if request.tables}
        seen |= set(kept.values())
        most = max(most, *kept.values(), 0)
        decoding = [row.request.handle for row in record.plan.rows if row.decode]
        if len(kept) == 2:
            total += sum(kept[handle] for handle in decoding)
            rows += len(decoding)
            assert figures(made).floor_tokens_decoding == total * PAGE
            assert figures(made).decode_rows == rows
        assert figures(made).floor_tokens == sum(kept.values()) * PAGE
    shown = figures(made)
    assert len(seen) > 2, "the floor came and went"
    assert shown.floor_tokens_max == most * PAGE
    assert shown.floor_tokens == 0
    assert 0 < shown.floor_tokens_mean <= INTERVAL


def test_without_recurrent_state_no_floor_keeps_anything() -> None:
    made = rig(cached=True, components=frozenset({FULL, ComponentName.WINDOW}))
    run(made, 1, range(20), output=40)
    shown = figures(made)
    assert shown.decode_rows == 39
    assert (shown.floor_tokens_max, shown.floor_tokens_mean, shown.checkpoints_taken) == (0, 0, 0)


def test_a_floor_that_gives_way_is_counted_and_keeps_nothing() -> None:
    made = rig(cached=True, window_pages=14, max_running=2, max_len=100, pages=100)
    for handle in (1, 2):
        prompt = tuple(range(handle, handle + 9))
        made.engine.submit(spec(f"q{handle}", prompt, max_tokens=60, ignore_eos=True), Handle(handle))
    while figures(made).floor_tokens == 0:
        made.step()
    kept = figures(made).floor_tokens
    window = made.pools[ComponentName.WINDOW]
    taken = window.alloc(window.free_count + 1)
    shown = figures(made)
    assert shown.floors_dropped > 0
    assert shown.floor_tokens < kept
    window.free(taken)
    made.engine.check()


def test_prompts_are_counted_by_who_computes_them() -> None:
    made = rig(cached=True)
    prompt = tuple(range(20))
    assert made.engine.expect(spec("sent", prompt), Handle(1), extend_max=8)
    made.engine.cancel(Handle(1), 1)
    run(made, 2, prompt)
    assert not made.engine.expect(spec("here", prompt), Handle(3), extend_max=8)
    assert made.engine.expect(spec("never", prompt), Handle(4), extend_max=0)
    scored = spec("scored", prompt)
    scored = replace(scored, score_from=0, sampling=replace(scored.sampling, logprobs=0))
    assert not made.engine.expect(scored, Handle(5), extend_max=8)
    assert made.engine.expect(spec("new", tuple(range(50, 56))), Handle(6), extend_max=8)
    shown = figures(made)
    assert shown.prompts == (
        ChosenPrompts("decode", "scored", 1),
        ChosenPrompts("decode", "short", 1),
        ChosenPrompts("prefill", "long", 2),
        ChosenPrompts("prefill", "uncached", 1),
    )
    assert (shown.prompts_extended, shown.prompts_sent) == (2, 3)


def test_a_refused_prompt_is_counted_nowhere() -> None:
    made = rig(cached=True, max_waiting=1)
    made.engine.expect(spec("a"), Handle(1))
    with pytest.raises(QueueFull):
        made.engine.expect(spec("b"), Handle(2))
    with pytest.raises(ContextTooLong):
        made.engine.expect(spec("c", 1000), Handle(3))
    assert figures(made).prompts_sent == 1


def test_without_a_cache_only_the_routes_of_prompts_are_counted() -> None:
    made = rig()
    run(made, 1, range(20), output=30)
    run(made, 2, range(20))
    made.engine.expect(spec("sent"), Handle(3), extend_max=8)
    assert figures(made) == CacheFigures(prompts=(ChosenPrompts("prefill", "uncached", 1),))
