"""One request's call to the worker that has, or computes, its state, seen from decode; decides nothing about pages.

Messages pass both ways between the call and the engine thread. However the call ends, the engine thread says by `Over`
whether the sender may still be writing; then the call ends only after it has said that it does not, or `fences` waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from decode_service.commands import (
    Arrived,
    Asked,
    Bytes,
    CheckpointArrived,
    Command,
    Fail,
    Progressed,
    SettledTicket,
)
from decode_service.fences import Fences
from decode_service.intake import Over
from kv_transfer.hosting.exchange import Exchange, Way
from segue.errors import (
    FingerprintMismatch,
    PeerLost,
    PrefillUnavailable,
    QueueFull,
    ServingError,
    TransferFailed,
    TransferRefused,
    WorkerUnavailable,
)
from segue.handoff import (
    Ask,
    Beat,
    BlockBytes,
    CheckpointPushed,
    Finished,
    FromReceiver,
    FromSender,
    Grant,
    HandoffFailed,
    Progress,
    Settled,
    Start,
    Ticket,
    Withdraw,
)
from segue.ids import Handle
from segue.wire import GenerateSpec
from segue.wire.peer_client import PrefillCall

log = logging.getLogger(__name__)

# Messages of state that may wait for the engine thread before the sender is held up.
_BYTES_AHEAD = 4


class Fetch:
    """Owned by the event loop. `put` takes commands for the engine thread, `reply` what that has to say."""

    def __init__(
        self,
        handle: Handle,
        call: int,
        spec: GenerateSpec,
        exchange: Exchange,
        fences: Fences,
        put: Callable[[Command], None],
        *,
        heartbeat_s: float,
        silence_s: float,
    ) -> None:
        self._handle = handle
        self._call = call
        self._spec = spec
        self._sender = spec.prefill_address if spec.moved is None else spec.moved.address
        self._exchange = exchange
        self._fences = fences
        self._put = put
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._replies: asyncio.Queue[FromReceiver | Over] = asyncio.Queue()
        self._over: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        self._settled: set[Ticket] = set()
        self._bytes: deque[asyncio.Future[None]] = deque()
        self._asked = False
        self._ticket: Ticket | None = None

    def reply(self, message: FromReceiver | Over) -> None:
        """The engine thread's word."""
        if isinstance(message, Over) and not self._over.done():
            self._over.set_result(message)
        self._replies.put_nowait(message)

    async def run(self) -> None:
        """From the call to the end of everything that is owed on it."""
        try:
            await self._run()
        finally:
            if self._ticket is not None:
                self._exchange.unexpect()

    async def _run(self) -> None:
        way: Way | None = None
        try:
            way = await self._exchange.way(self._sender)
            try:
                await self._follow(way)
            except TransferRefused:
                if self._asked:
                    raise
                # Another process answers at the address by now, and has never heard of this one.
                self._exchange.doubt(way)
                way = await self._exchange.way(self._sender)
                await self._follow(way)
        except ServingError as error:
            if way is not None:
                self._exchange.doubt(way)
            self._fail(error)
        ticket = (await self._over).ticket
        if ticket is not None and ticket not in self._settled:
            assert way is not None, f"{ticket} was promised to nobody"
            await self._fences.close(way, ticket)

    async def _follow(self, way: Way) -> None:
        """Calls, and passes messages until nothing is owed. Raises what broke the call."""
        ours = self._exchange.peers.introduction.worker_id
        call = way.client.prefill()
        try:
            await call.write(Start(ours, way.transport, 0, self._spec))
            await self._exchange_messages(call, way)
        finally:
            call.cancel()

    async def _exchange_messages(self, call: PrefillCall, way: Way) -> None:
        tasks = [asyncio.create_task(work) for work in (self._read(call, way), self._write(call), self._beat())]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[:2]:
                if task.done():
                    task.result()
            over = await self._over
            if over.ticket is not None and over.ticket not in self._settled and not tasks[0].done():
                async with asyncio.timeout(self._silence_s):
                    await tasks[0]
        except TimeoutError:
            raise PeerLost(f"worker {self._sender} does not say that it has stopped") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: PrefillCall, way: Way) -> None:
        """Reads until the sender has settled, or has nothing to settle."""
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    message = await call.read()
            except TimeoutError:
                raise PeerLost(f"the worker {self._sender} said nothing for {self._silence_s} s") from None
            await self._take(message, way)
            # The word on another ticket answers something that was never said here: the wire has damaged it.
            if isinstance(message, Settled) and message.ticket == self._ticket:
                return
            if isinstance(message, Finished) and message.ticket is None and self._ticket is None:
                return

    async def _take(self, message: FromSender, way: Way) -> None:
        handle, attempt, call = self._handle, self._spec.attempt, self._call
        match message:
            case Ask():
                self._asked = True
                peer = way.peer.introduction
                self._put(Asked(handle, attempt, peer.worker_id, peer.tp_size, message, call))
            case Progress():
                self._put(Progressed(handle, attempt, message))
            case BlockBytes():
                await self._pass_bytes(message)
            case Finished():
                require_report(self._spec, message, self._sender)
                await self._all_bytes_written()
                self._put(Arrived(handle, attempt, message, call))
            case CheckpointPushed():
                await self._all_bytes_written()
                self._put(CheckpointArrived(handle, attempt, message, call))
            case Settled():
                self._settled.add(message.ticket)
                self._put(SettledTicket(message.ticket))
            case HandoffFailed():
                self._fail(message.error)

    def _fail(self, error: ServingError) -> None:
        blame = (blamed if self._spec.moved is None else lost_on_the_way)(error, self._sender)
        self._put(Fail(self._handle, self._spec.attempt, blame, self._call))

    async def _pass_bytes(self, message: BlockBytes) -> None:
        command = Bytes(message)
        self._put(command)
        self._bytes.append(asyncio.wrap_future(command.written))
        while len(self._bytes) > _BYTES_AHEAD:
            await self._bytes.popleft()

    async def _all_bytes_written(self) -> None:
        while self._bytes:
            await self._bytes.popleft()

    async def _write(self, call: PrefillCall) -> None:
        while not isinstance(message := await self._replies.get(), Over):
            if isinstance(message, Grant):
                self._ticket = message.ticket
                self._exchange.expect()
            await call.write(message)
        if message.ticket is not None:
            await call.write(Withdraw(message.ticket))

    async def _beat(self) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            sequence += 1
            self._replies.put_nowait(Beat(sequence))


def blamed(error: ServingError, address: str) -> ServingError:
    """An error of the prefill leg as the router must see it: what the request is not to blame for, that worker is."""
    refused = isinstance(error, WorkerUnavailable | FingerprintMismatch | TransferRefused)
    if refused or type(error) is ServingError:
        return PrefillUnavailable(f"prefill worker {address}: {error.message}")
    return error


def lost_on_the_way(error: ServingError, address: str) -> ServingError:
    """An error of a move as the router must see it: the request goes on without the state that was to come."""
    if isinstance(error, TransferFailed) or (error.client_fault and not isinstance(error, QueueFull | TransferRefused)):
        return error
    return PeerLost(f"worker {address}, which kept the request's state: {error.message}")


def require_report(spec: GenerateSpec, finished: Finished, sender: str) -> None:
    """Raises TransferFailed for a token that is to be told, and comes without what is to be told of it."""
    told = spec.moved is None
    if told and spec.sampling.logprobs is not None and finished.token.logprob is None:
        raise TransferFailed(f"worker {sender} sent a first token without the logprob that was asked for")
