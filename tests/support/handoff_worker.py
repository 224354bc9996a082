"""A worker without an engine: real pools, arena, transports and gRPC, and state that a script fills in chunks."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import torch

from kv_transfer.arena_map import map_arena
from kv_transfer.desk import Desk
from kv_transfer.digest import digest_contents, zero_tail
from kv_transfer.fingerprint import Fingerprint, describe_layouts
from kv_transfer.handover import Handover
from kv_transfer.hosting.interceptor import ErrorInterceptor
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from kv_transfer.outbox import GrpcLink, Outbox
from kv_transfer.peer_servicer import PeerServicer
from kv_transfer.peers import Peers
from kv_transfer.plan import Side
from kv_transfer.process import ProcessWatch, own_process
from kv_transfer.receiver import Incoming, Receiver
from kv_transfer.reservations import Reservations
from kv_transfer.scratch import Scratch
from kv_transfer.transport import Link
from segue.batch.news import Usage
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.errors import Cancelled, PeerLost, ServingError
from segue.handoff import (
    Ask,
    BlockBytes,
    CheckpointPushed,
    Finished,
    HandoffFailed,
    Part,
    Progress,
    Renewed,
    Settled,
    Start,
    Terms,
    Ticket,
    TransportName,
    UnitRow,
)
from segue.ids import RequestId, RouterId, WorkerId
from segue.peering import Introduction
from segue.state.layout import UnitLayout
from segue.state.needs import page_count
from segue.tokens import EmittedToken
from segue.v1 import transfer_pb2 as pb
from segue.v1 import transfer_pb2_grpc
from segue.wire import PROTOCOL_VERSION
from segue.wire.peer_client import PeerClient, PrefillCall
from segue.wire.transfer_stream import receiver_message_from_proto, sender_message_to_proto
from tests.support.handoff_fence import Fence
from tests.support.handoff_state import (
    FULL,
    RECURRENT,
    WINDOW,
    free_rows,
    make_storage,
    model_state,
    shows,
    take_row,
    write_pages,
    write_slot,
)
from tests.support.live_process import see_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What kind of worker; everything a test varies. One that does not `watch` sees no process, as if elsewhere."""

    page_tokens: int = 4
    window: int | None = 6
    width: int = 8
    units: int = 64
    weights: str = "w0"
    ucx_tls: str = ""
    transport: str = "nixl"
    lease_s: float = 20.0
    port: int = 0
    watch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One handoff, as the receiver asks for it. The sender waits before chunk `pause_after` to be told to go on."""

    request: str
    prompt_tokens: int
    held_tokens: int = 0
    checkpoint: int | None = None
    chunk: int = 5
    pause_after: int | None = None
    damage: bool = False


def fingerprint_fields(setting: Setting, layouts: tuple[UnitLayout, ...]) -> tuple[tuple[str, str], ...]:
    """What peers of such a worker must have in common with it."""
    fingerprint = Fingerprint(
        model_config="c0",
        weights=setting.weights,
        compute_dtype="float32",
        page_tokens=setting.page_tokens,
        window=setting.window,
        kernel_chunk=setting.page_tokens,
        components=describe_layouts(layouts),
        protocol_version=PROTOCOL_VERSION,
    )
    return tuple(fingerprint.fields().items())


class Worker:
    """Both roles. Lives on one event loop, which owns all its policy."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.worker_id = WorkerId(f"worker-{uuid.uuid4().hex[:8]}")
        state = model_state(setting.window, setting.width)
        layouts, self.storage, self.pools = make_storage(state, setting.page_tokens, setting.units)
        self.side = Side(layouts, setting.page_tokens, setting.window)
        self.arena = map_arena(self.storage)
        self.reservations = Reservations(self.pools, time.monotonic, lease_s=setting.lease_s)
        self.receiver = Receiver(self.reservations, self.storage, self.side)
        self.go = asyncio.Event()
        self._stopping = asyncio.Event()
        self._turned = asyncio.Event()
        self._pushed = 0
        self.handed: list[Handover] = []
        self._coming: dict[PrefillCall, Incoming] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._desks: dict[WorkerId, Desk] = {}
        self._scratch = Scratch(torch.device("cpu"))
        self.agent: NixlAgent | None = None
        if setting.transport == "nixl":
            config = NixlConfig(ucx_tls=setting.ucx_tls)
            self.agent = NixlAgent(str(self.worker_id), self.storage.regions, self._scratch.memory, config)
        watch = ProcessWatch.open if setting.watch else see_nothing
        self.peers = Peers(self._introduction(), self.agent, self._scratch, timeout_s=5.0, watch=watch)

    async def start(self) -> str:
        """Serves; returns the address."""
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=[("grpc.so_reuseport", 0)])
        transfer_pb2_grpc.add_PeerServicer_to_server(PeerServicer(self.peers, self._settle), self._server)
        transfer_pb2_grpc.add_PrefillServicer_to_server(_Prefill(self), self._server)
        port = self._server.add_insecure_port(f"127.0.0.1:{self.setting.port}")
        await self._server.start()
        self._ticking = asyncio.create_task(self._tick())
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        self._stopping.set()
        await self._ticking
        await self._server.stop(0)
        if self.agent is not None:
            self.agent.close()

    def desk(self, peer: WorkerId) -> Desk:
        if peer not in self._desks:
            self._desks[peer] = Desk(asyncio.get_running_loop(), time.monotonic)
        return self._desks[peer]

    def in_flight(self) -> int:
        return sum(desk.sending.in_flight_count for desk in self._desks.values())

    def pushed(self) -> int:
        """Chunks that have been handed to the transport so far."""
        return self._pushed

    def count_push(self) -> None:
        self._pushed += 1

    async def turn(self) -> None:
        """Returns after the next turn of the worker's own clock."""
        self._turned.clear()
        await self._turned.wait()

    async def receive(self, address: str, script: Script) -> dict[str, object]:
        """One handoff from the worker at `address`. Raises what ended it."""
        client = PeerClient(address)
        rows: list[UnitRow] = []
        try:
            peer, transport = await self.peers.connect(client)
            rows.append(take_row(self.pools, Part.STATE, FULL, 0, script.held_tokens // self.setting.page_tokens))
            write_pages(self.storage, rows[0], script.request, 0, script.held_tokens)
            call = client.prefill()
            try:
                await call.write(Start(self.worker_id, transport, script.held_tokens, _spec(script)))
                await self._follow(call, peer.introduction, script, rows)
            finally:
                call.cancel()
                await self._end(address, call, peer.introduction)
            return {"transport": transport.value, "whole": self._whole(script, rows), "rows": len(rows) - 1}
        finally:
            free_rows(self.pools, rows)
            await client.close()

    async def _follow(self, call: PrefillCall, peer: Introduction, script: Script, rows: list[UnitRow]) -> None:
        while True:
            match message := await call.read():
                case Ask():
                    self._coming[call] = self._grant(peer, script, message)
                    if self.agent is not None:
                        self.agent.expect()
                    await call.write(self._coming[call].grant)
                case Progress():
                    if self.reservations.progress(message.ticket):
                        await call.write(Renewed(message.ticket, message.sequence))
                case BlockBytes():
                    self.receiver.put(message)
                case Finished():
                    rows += self.receiver.accept(self._coming[call], Part.STATE, message.digests) or ()
                    if script.checkpoint is None:
                        return
                case CheckpointPushed():
                    rows += self.receiver.accept(self._coming[call], Part.CHECKPOINT, message.digests) or ()
                    return
                case Settled():
                    self.reservations.settled(message.ticket)
                case HandoffFailed():
                    raise message.error

    def _grant(self, peer: Introduction, script: Script, ask: Ask) -> Incoming:
        checkpoint = ask.checkpoint if script.checkpoint is not None else None
        terms = Terms(ask.prompt_tokens, script.held_tokens, checkpoint)
        request_id = RequestId(script.request)
        return self.receiver.grant(peer.worker_id, peer.tp_size, request_id, 1, ask.number, terms, headroom_tokens=3)

    async def _end(self, address: str, call: PrefillCall, peer: Introduction) -> None:
        """The call is over: what may still be written is quarantined until the sender answers or is proven dead."""
        if (incoming := self._coming.pop(call, None)) is None:
            return
        if self.agent is not None:
            self.agent.unexpect()
        ticket = incoming.grant.ticket
        if self.reservations.cancel(ticket):
            fence = Fence(self.peers, self.reservations, self.turn)
            task = asyncio.create_task(fence.close(address, peer, ticket))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _whole(self, script: Script, rows: list[UnitRow]) -> bool:
        """Whether every position that the rows should hold is what the request has there."""
        tokens, window = self.setting.page_tokens, self.setting.window or 0
        for row in rows:
            depth = script.prompt_tokens if row.part is Part.STATE else script.checkpoint or 0
            start, stop = row.first * tokens, min(depth, row.stop * tokens)
            if row.component is WINDOW:
                start = max(start, depth - window)
            elif row.component is RECURRENT:
                stop = depth
            if not shows(self.storage, row, script.request, start, stop):
                return False
        return True

    async def _settle(self, peer: WorkerId, ticket: Ticket) -> None:
        await self.desk(peer).settle(ticket)

    async def _tick(self) -> None:
        while not self._stopping.is_set():
            for worker_id in self.peers.take_dead():
                self.desk(worker_id).lost(PeerLost(f"the process of {worker_id} is gone"))
                await self.peers.bury(worker_id)
                self.reservations.proven_dead(worker_id)
            for ticket in self.reservations.expire():
                for call, incoming in self._coming.items():
                    if incoming.grant.ticket == ticket:
                        call.cancel()
            self.reservations.check()
            for desk in self._desks.values():
                desk.pump()
            self._turned.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.02)

    def _introduction(self) -> Introduction:
        return Introduction(
            worker_id=self.worker_id,
            protocol_version=PROTOCOL_VERSION,
            fingerprint=fingerprint_fields(self.setting, self.side.layouts),
            tp_size=1,
            arena=self.arena,
            process=own_process(),
        )


class _Prefill(transfer_pb2_grpc.PrefillServicer):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Prefill(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.ReceiverMessage],
        context: "grpc.aio.ServicerContext[pb.ReceiverMessage, pb.SenderMessage]",
    ) -> AsyncIterator[pb.SenderMessage]:
        start = receiver_message_from_proto(await anext(request_iterator))
        assert isinstance(start, Start)
        worker = self._worker
        outbox = Outbox(asyncio.get_running_loop(), worker.storage.regions)
        peer = worker.peers.find(start.worker_id)
        link: Link = GrpcLink(outbox)
        if start.transport is TransportName.NIXL:
            assert peer.link is not None
            link = peer.link
        handover = Handover(
            worker.desk(start.worker_id), outbox, link, ours=worker.arena, side=worker.side, peer=peer.introduction
        )
        worker.handed.append(handover)
        listening = asyncio.create_task(_listen(request_iterator, handover))
        running = asyncio.create_task(_run(worker, handover, start.request))
        ending = asyncio.create_task(_end(running, listening, outbox))
        try:
            async with aclosing(outbox.messages()) as messages:
                async for message in messages:
                    yield sender_message_to_proto(message)
        finally:
            listening.cancel()
            handover.abandon(Cancelled("the call has ended"))
            await asyncio.wait([running, ending])


async def _listen(messages: AsyncIterator[pb.ReceiverMessage], handover: Handover) -> None:
    async for message in messages:
        handover.take(receiver_message_from_proto(message))


async def _end(running: "asyncio.Task[None]", listening: "asyncio.Task[None]", outbox: Outbox) -> None:
    """The receiver ends the call: if it still wrote when the sender did, it would lose what it has not read yet."""
    await asyncio.wait([running])
    await asyncio.wait([listening], timeout=5.0)
    outbox.finish()


async def _run(worker: Worker, handover: Handover, spec: GenerateSpec) -> None:
    """What a prefill engine does: compute chunk by chunk, push, finish, and free once nothing reads the pages."""
    script = Script(**json.loads(spec.extension))
    n, tokens, pools = script.prompt_tokens, worker.setting.page_tokens, worker.pools
    pages = page_count(n, tokens)
    full, window = (take_row(pools, Part.STATE, name, 0, pages) for name in (FULL, WINDOW))
    slots = [take_row(pools, part, RECURRENT, 0, 1) for part in Part]
    rows = [full, window, *slots, replace(window, part=Part.CHECKPOINT)]
    try:
        handover.ask(n, script.checkpoint)
        with suppress(ServingError):
            outgoing = await handover.granted
            computed = 0
            for index, now in enumerate([*range(script.chunk, n, script.chunk), n]):
                if script.pause_after == index:
                    going = asyncio.ensure_future(worker.go.wait())
                    ends: set[asyncio.Future[Any]] = {going, handover.settled}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    going.cancel()
                for row in (full, window):
                    write_pages(worker.storage, row, script.request, computed, now)
                if now == n:
                    for row in (full, window):
                        zero_tail(worker.storage, row.component, row.units[-1] or 0, n - (pages - 1) * tokens)
                    write_slot(worker.storage, slots[0].units[0] or 0, script.request, n)
                handover.push(computed, now, rows)
                worker.count_push()
                computed = now
            contents = outgoing.plan.contents(Part.STATE)
            digests = digest_contents(worker.storage, [full, window, slots[0]], contents)
            if script.damage:
                digests = tuple(replace(digest, value="0" * 32) for digest in digests)
            usage = Usage(n, 1, script.held_tokens)
            handover.finish(Finished(None, EmittedToken(7, -0.5), usage, digests))
            if outgoing.plan.checkpoint():
                depth = script.checkpoint or 0
                write_slot(worker.storage, slots[1].units[0] or 0, script.request, depth)
                places = [row for row in rows if row.part is Part.CHECKPOINT]
                sums = digest_contents(worker.storage, places, outgoing.plan.contents(Part.CHECKPOINT))
                handover.push_checkpoint(rows, lambda ticket: CheckpointPushed(ticket, depth, sums))
        await handover.settled
    finally:
        free_rows(pools, [full, window, *slots])


def _spec(script: Script) -> GenerateSpec:
    fields = {name: getattr(script, name) for name in script.__slots__}
    return GenerateSpec(
        router_id=RouterId("router"),
        request_id=RequestId(script.request),
        attempt=1,
        prompt=tuple(range(script.prompt_tokens)) if script.prompt_tokens < 1000 else (1,),
        sampling=SamplingParams(seed=0),
        extension=json.dumps(fields).encode(),
    )
