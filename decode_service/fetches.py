"""All calls of a decode worker to those who send it state: one task each, from acceptance until nothing is owed."""

from collections.abc import Callable, Sequence

from decode_service.commands import Command, PeerDied
from decode_service.fences import Fences
from decode_service.fetch import Fetch
from decode_service.intake import CallAgain, Over, Reply
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.tasks import OwnedTasks
from segue.ids import Handle, WorkerId
from segue.wire import GenerateSpec


class Fetches:
    """Owned by the event loop. `broken` is told what ended a task by our own mistake."""

    def __init__(
        self,
        exchange: Exchange,
        put: Callable[[Command], None],
        broken: Callable[[BaseException], None],
        config: TransferConfig,
    ) -> None:
        self._exchange = exchange
        self._put = put
        self._config = config
        self._fences = Fences(exchange, put, retry_s=config.settle_s)
        self._fetches: dict[Handle, Fetch] = {}
        self._uncalled: set[Handle] = set()
        self._tasks = OwnedTasks(broken)
        self._tasks.start(exchange.run(self._peer_died))

    def prepare(self, handle: Handle, spec: GenerateSpec, call: int = 0) -> None:
        """Before the engine takes the request: from then on it may have something to say to its sender."""
        if not spec.prefill_address and spec.moved is None:
            return
        self._fetches[handle] = Fetch(
            handle,
            call,
            spec,
            self._exchange,
            self._fences,
            self._put,
            heartbeat_s=self._config.heartbeat_s,
            silence_s=self._config.silence_s,
        )
        self._uncalled.add(handle)

    def forget(self, handle: Handle) -> None:
        """The engine did not take the request, or needs no sender for it; by now it may have asked for one again."""
        if handle in self._uncalled:
            self._uncalled.remove(handle)
            self._fetches.pop(handle, None)

    def start(self, handle: Handle) -> None:
        """The engine took the request: its sender is called."""
        self._uncalled.discard(handle)
        if (fetch := self._fetches.get(handle)) is not None:
            self._tasks.start(fetch.run())

    def deliver(self, replies: Sequence[Reply]) -> None:
        """The engine thread's words to the senders."""
        for reply in replies:
            match reply.message:
                case CallAgain():
                    self.prepare(reply.handle, reply.message.spec, reply.message.call)
                    self.start(reply.handle)
                case Over():
                    self._fetches.pop(reply.handle).reply(reply.message)
                case _:
                    self._fetches[reply.handle].reply(reply.message)

    async def close(self) -> None:
        """Ends every call. What senders may still write goes with the process."""
        await self._tasks.close()
        await self._exchange.close()

    def _peer_died(self, peer: WorkerId) -> None:
        self._put(PeerDied(peer))
        self._fences.peer_died(peer)
