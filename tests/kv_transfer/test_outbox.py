"""What is put in first is sent first, and a write never hangs when its call has ended."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
import torch

from kv_transfer.outbox import GrpcLink, Outbox
from segue.errors import PeerLost
from segue.handoff import Beat, BlockBytes, FromSender, Settled, Ticket
from segue.ids import RequestId, ReservationId
from segue.state.regions import Regions

TICKET = Ticket(RequestId("r"), ReservationId(1), 1)
BLOCKS = np.array([[0, 8, 4]], dtype=np.int64)


def outbox() -> Outbox:
    return Outbox(asyncio.get_running_loop(), Regions([torch.arange(16, dtype=torch.uint8)]))


async def test_messages_and_bytes_leave_in_the_order_in_which_they_came() -> None:
    box = outbox()
    box.put(Beat(1))
    done = GrpcLink(box).write(TICKET, BLOCKS, "page")
    box.put(Settled(TICKET))
    box.finish()
    sent: list[FromSender] = [message async for message in box.messages()]
    assert [type(message) for message in sent] == [Beat, BlockBytes, Settled]
    assert isinstance(sent[1], BlockBytes)
    assert (sent[1].payload, sent[1].offsets) == (b"\0\1\2\3", (8,))
    assert done.result(0) is None


async def test_a_write_has_settled_only_when_the_stream_took_its_last_byte() -> None:
    box = outbox()
    done = box.put_blocks(TICKET, BLOCKS, "page")
    async with aclosing(box.messages()) as messages:
        assert isinstance(await anext(messages), BlockBytes)
        assert not done.done()


@pytest.mark.parametrize("taken", [0, 1])
async def test_writes_of_a_call_that_has_ended_are_lost_not_forgotten(taken: int) -> None:
    box = outbox()
    writes = [box.put_blocks(TICKET, BLOCKS, "page") for _ in range(2)]
    box.put(Beat(0))
    async with aclosing(box.messages()) as messages:
        for _ in range(taken + 1):
            await anext(messages)
    writes.append(box.put_blocks(TICKET, BLOCKS, "page"))
    await asyncio.sleep(0)
    assert [isinstance(write.exception(0), PeerLost) for write in writes[taken:]] == [True] * (3 - taken)


async def test_a_message_after_the_end_is_dropped() -> None:
    box = outbox()
    box.finish()
    assert [message async for message in box.messages()] == []
    box.put(Beat(1))
    await asyncio.sleep(0)
