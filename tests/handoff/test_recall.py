"""Calls to senders whose state was lost here, in the orders in which the event loop may come to hear of them."""

from dataclasses import replace
from pathlib import Path

from decode_service.intake import CallAgain, Over, Reply
from segue.ids import Handle
from tests.decode_service.router_end import spec
from tests.handoff.pair import paired


async def test_a_call_that_the_engine_asks_for_outlives_the_late_word_that_none_was_needed(hybrid: Path) -> None:
    async with paired(hybrid) as pair:
        fetches = pair.decode.worker._fetches
        assert fetches is not None
        handle, asked = Handle(9), replace(spec("again"), prefill_address=pair.prefill.address)
        fetches.prepare(handle, asked)
        fetches.deliver([Reply(handle, CallAgain(asked, 1))])
        fetches.forget(handle)
        fetches.deliver([Reply(handle, Over(None))])
        await pair.emptied()
