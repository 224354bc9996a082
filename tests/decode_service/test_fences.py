"""A fence around what a silent sender may still write opens by the sender's word or by proof of its death."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from decode_service.commands import SettledTicket
from decode_service.fences import Fences
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.loading import Identity
from segue.batch.sampling import SamplingDefaults
from segue.engine_facts import EngineFacts
from segue.handoff import Ticket
from segue.ids import RequestId, ReservationId, WorkerId
from segue.peering import Life
from segue.v1 import transfer_pb2 as pb
from segue.wire.transfer_calls import life_from_proto
from tests.support.handoff_process import HandoffProcess
from tests.support.handoff_state import make_storage, model_state
from tests.support.handoff_worker import Setting, fingerprint_fields
from tests.support.live_process import see_nothing
from tests.support.wire_proxy import Messages, WireProxy

pytestmark = pytest.mark.cluster

SETTING = Setting(transport="nixl")
CONFIG = TransferConfig(transports="nixl", connect_s=2.0, settle_s=0.2)
TICKETS = [Ticket(RequestId("r"), ReservationId(number), 1) for number in (1, 2)]


class Holder:
    """The decode side: its peers, none of which it can watch, and fences around what they may write."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.settled: list[Ticket] = []
        self.dead: list[WorkerId] = []
        self.fences = Fences(exchange, self._settle, retry_s=CONFIG.settle_s)

    def died(self, peer: WorkerId) -> None:
        self.dead.append(peer)
        self.fences.peer_died(peer)

    def _settle(self, command: SettledTicket) -> None:
        self.settled.append(command.ticket)


@asynccontextmanager
async def holding() -> AsyncIterator[Holder]:
    layouts, storage, _ = make_storage(model_state(SETTING.window, SETTING.width), SETTING.page_tokens, SETTING.units)
    facts = EngineFacts(
        name="made up",
        vocab_size=1,
        max_len=1,
        eos_token_ids=(),
        defaults=SamplingDefaults(),
        page_tokens=SETTING.page_tokens,
        dtype="float32",
        deterministic=True,
        window=SETTING.window,
        layouts=layouts,
    )
    identity = Identity(facts, "", fingerprint_fields(SETTING, layouts))
    exchange = await Exchange.open(WorkerId("holder"), identity, storage, CONFIG, watch=see_nothing)
    holder = Holder(exchange)
    running = asyncio.create_task(exchange.run(holder.died))
    try:
        yield holder
    finally:
        running.cancel()
        await asyncio.wait([running])
        await exchange.close()


async def test_a_frozen_sender_that_is_killed_is_known_to_be_gone_by_the_word_of_its_successor() -> None:
    sender = HandoffProcess(SETTING)
    try:
        async with holding() as holder:
            way = await holder.exchange.way(sender.address)
            sender.signal(signal.SIGSTOP)
            closing = [asyncio.create_task(holder.fences.close(way, ticket)) for ticket in TICKETS]
            sender.kill()
            successor = HandoffProcess(replace(SETTING, port=int(sender.address.rpartition(":")[2])))
            try:
                await asyncio.wait_for(asyncio.gather(*closing), 60)
            finally:
                successor.close()
            assert holder.dead == [way.peer.introduction.worker_id]
            assert holder.settled == []
            # A fence that comes late finds what is known.
            await asyncio.wait_for(holder.fences.close(way, TICKETS[0]), 5)
    finally:
        sender.close()


async def test_any_worker_beside_a_killed_sender_says_so() -> None:
    sender, beside = HandoffProcess(SETTING), HandoffProcess(SETTING)
    try:
        async with holding() as holder:
            way = await holder.exchange.way(sender.address)
            await holder.exchange.way(beside.address)
            sender.kill()
            await asyncio.wait_for(holder.fences.close(way, TICKETS[0]), 60)
            assert holder.dead == [way.peer.introduction.worker_id]
    finally:
        sender.close()
        beside.close()


async def test_a_frozen_sender_that_goes_on_speaks_for_itself() -> None:
    sender, beside = HandoffProcess(SETTING), HandoffProcess(SETTING)
    said = asyncio.Event()

    async def noted(messages: Messages) -> AsyncIterator[bytes]:
        async for message in messages:
            assert life_from_proto(pb.ProcessLife.FromString(message))[1] is Life.ALIVE
            said.set()
            yield message

    try:
        async with holding() as holder, WireProxy(beside.address) as proxy:
            proxy.down["Lives"] = noted
            way = await holder.exchange.way(sender.address)
            await holder.exchange.way(proxy.address)
            sender.signal(signal.SIGSTOP)
            closing = asyncio.create_task(holder.fences.close(way, TICKETS[0]))
            await asyncio.wait_for(said.wait(), 60)
            assert not closing.done()
            sender.signal(signal.SIGCONT)
            await asyncio.wait_for(closing, 60)
            assert holder.settled == [TICKETS[0]]
            assert holder.dead == []
    finally:
        sender.close()
        beside.close()
