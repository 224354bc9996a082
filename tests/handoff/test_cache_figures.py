"""Both workers' Status says what came of their caches, in pairs of real engines."""

from pathlib import Path

from segue.cache.figures import CacheHits
from segue.ids import Handle
from segue.wire import WorkerStatus, status_from_proto, status_to_proto
from tests.handoff.pair import Pair, paired
from tests.handoff.test_reuse import asking, prompt

INTERVAL = 64


async def statuses(pair: Pair) -> tuple[WorkerStatus, WorkerStatus]:
    """Of the prefill and the decode worker, as a router reads them."""
    prefill = status_from_proto(status_to_proto(await pair.prefill.worker.status()))
    return prefill, await pair.router.status()


async def test_it_is_told_who_computed_a_prompt_and_what_was_reused_for_it(hybrid: Path) -> None:
    asked = [asking("a", prompt(200)), asking("b", (*prompt(200), *prompt(20, 5))), asking("c", prompt(240, 7))]
    async with paired(hybrid, extend_tokens=32) as pair:
        for one in asked:
            await pair.ask([one])
            await pair.emptied()
        prefill, decode = await statuses(pair)
    assert (decode.cache.prompts_extended, decode.cache.prompts_sent) == (1, 2)
    # Only the second started at the decode worker: at 192, where the checkpoint of the first had followed.
    assert decode.cache.looked_up_tokens == 220
    assert decode.cache.hits == (CacheHits("full", 192),)
    assert decode.cache.checkpoints_resumed == 1
    assert decode.cache.checkpoints_taken >= 2
    assert (prefill.cache.looked_up_tokens, prefill.cache.hits) == (200 + 240, ())
    assert (prefill.cache.prompts_extended, prefill.cache.prompts_sent) == (0, 0)
    for status in (prefill, decode):
        for pool in status.pools:
            assert pool.cached > 0, f"{pool.component} of {status.worker_id} caches nothing"
            sets = (pool.free, pool.held, pool.cached, pool.reserved, pool.quarantined, pool.sink)
            assert sum(sets) == pool.capacity


async def test_the_floor_of_a_request_that_decodes_is_in_its_workers_status(hybrid: Path) -> None:
    async with paired(hybrid, track_interval=INTERVAL) as pair:
        handle: Handle = await pair.begin(asking("a", prompt(100), output=70))
        await pair.until(pair.decode.worker, lambda status: status.cache.floor_tokens > 0)
        await pair.end(handle)
        await pair.emptied()
        prefill, decode = await statuses(pair)
    assert decode.cache.decode_rows == 69
    assert decode.cache.floor_tokens == 0
    assert 0 < decode.cache.floor_tokens_mean <= INTERVAL
    assert decode.cache.floor_tokens_mean < decode.cache.floor_tokens_max
    assert decode.cache.floors_dropped == 0
    assert prefill.cache.decode_rows == 0


async def test_without_retention_no_floor_keeps_anything(hybrid: Path) -> None:
    async with paired(hybrid, track_interval=INTERVAL, retain_window=False, extend_tokens=64) as pair:
        await pair.ask([asking("a", prompt(100), output=2)])
        await pair.emptied()
        await pair.ask([asking("b", (*prompt(100), 5))])
        await pair.ask([asking("c", prompt(100, 3), output=70)])
        await pair.emptied()
        _, decode = await statuses(pair)
    # The prompt checkpoint has followed all the same: the second prompt went on from there.
    assert decode.cache.prompts_extended == 1
    assert decode.cache.reused_tokens == 64
    assert decode.cache.checkpoints_taken > 1
    assert (decode.cache.floor_tokens_max, decode.cache.floors_dropped) == (0, 0)
