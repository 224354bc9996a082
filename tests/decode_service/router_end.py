"""The router's end of a worker, by hand: a real gRPC client that keeps what it is told, and breaks off when asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType

import grpc
import grpc.aio

from segue.batch.sampling import SamplingParams
from segue.ids import Handle, RequestId, RouterId
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerStub
from segue.wire import (
    Attach,
    Attached,
    Ended,
    GenerateSpec,
    Heartbeat,
    Resume,
    RouterMessage,
    SnapshotTaken,
    StepNews,
    TakeSnapshot,
    Top,
    WorkerStatus,
    error_from_rpc,
    generate_to_proto,
    router_message_to_proto,
    snapshot_taken_from_proto,
    status_from_proto,
    take_snapshot_to_proto,
    worker_message_from_proto,
)
from segue.wire.channel import PLAIN, TlsConfig, open_channel


def spec(
    request_id: str = "q",
    *,
    router_id: str = "r",
    attempt: int = 1,
    prompt: tuple[int, ...] = (5, 6, 7),
    emitted: tuple[int, ...] = (),
    max_tokens: int = 8,
    deadline_s: float | None = None,
    logprobs: int | None = None,
    score_from: int | None = None,
) -> GenerateSpec:
    """A greedy request that runs to its budget."""
    return GenerateSpec(
        router_id=RouterId(router_id),
        request_id=RequestId(request_id),
        attempt=attempt,
        prompt=prompt,
        emitted=emitted,
        sampling=SamplingParams(seed=1, temperature=0.0, max_tokens=max_tokens, logprobs=logprobs),
        deadline_s=deadline_s,
        score_from=score_from,
    )


class RouterEnd:
    """One channel to one worker."""

    def __init__(self, address: str, tls: TlsConfig = PLAIN) -> None:
        self._channel = open_channel(address, tls)
        self.stub = WorkerStub(self._channel)

    async def __aenter__(self) -> "RouterEnd":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def generate(self, request: GenerateSpec) -> Handle:
        """Raises the ServingError that the worker refused it with."""
        try:
            reply = await self.stub.Generate(generate_to_proto(request), timeout=10)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from None
        return Handle(reply.handle)

    async def take_snapshot(self, asked: TakeSnapshot) -> SnapshotTaken:
        """Raises the ServingError that the worker refused or failed it with."""
        try:
            reply = await self.stub.TakeSnapshot(take_snapshot_to_proto(asked), timeout=40)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from None
        return snapshot_taken_from_proto(reply)

    async def status(self) -> WorkerStatus:
        return status_from_proto(await self.stub.Status(pb.StatusRequest(), timeout=10))

    @asynccontextmanager
    async def attach(self, router_id: str = "r", *resume: Resume) -> AsyncIterator["Attachment"]:
        """A session that is attached, and breaks off at the end of the block."""
        call = self.stub.Session()
        await call.write(router_message_to_proto(Attach(RouterId(router_id), resume)))
        attachment = Attachment(call)
        await attachment.until(lambda a: a.hello is not None)
        try:
            yield attachment
        finally:
            call.cancel()


class Attachment:
    """What one stream told, in order. Entries of a request are (attempt, index, token id).

    `scores` are by position of the prompt, each told once.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[pb.RouterMessage, pb.WorkerMessage]) -> None:
        self._call = call
        self.hello: Attached | None = None
        self.beats = 0
        self.ending = False
        self.messages: list[StepNews] = []
        self.tokens: dict[int, list[tuple[int, int, int]]] = {}
        self.ended: dict[int, Ended] = {}
        self.scores: dict[int, dict[int, tuple[float, Top]]] = {}

    async def send(self, message: RouterMessage) -> None:
        await self._call.write(router_message_to_proto(message))

    async def beat(self) -> None:
        await self.send(Heartbeat(1))

    async def until(self, done: Callable[["Attachment"], bool]) -> None:
        """Reads until `done`. Raises the worker's error when the stream ends before."""
        async with asyncio.timeout(20):
            while not done(self):
                try:
                    message = await self._call.read()
                except grpc.aio.AioRpcError as failure:
                    raise error_from_rpc(failure) from None
                assert isinstance(message, pb.WorkerMessage), f"the stream ended: {await self._call.code()}"
                self._take(message)

    async def until_end(self) -> None:
        """Reads until the worker ends the stream. Raises its error, if it ended with one."""
        async with asyncio.timeout(20):
            try:
                while isinstance(message := await self._call.read(), pb.WorkerMessage):
                    self._take(message)
            except grpc.aio.AioRpcError as failure:
                raise error_from_rpc(failure) from None
            assert await self._call.code() is grpc.StatusCode.OK

    def _take(self, message: pb.WorkerMessage) -> None:
        match worker_message_from_proto(message):
            case Attached() as hello:
                self.hello = hello
            case Heartbeat() as beat:
                self.beats += 1
                assert beat.ending or not self.ending, "a worker that is ending does not say that to its end"
                self.ending = beat.ending
            case StepNews() as news:
                self.messages.append(news)
                for of in news.scores:
                    told = self.scores.setdefault(of.handle, {})
                    for place, score in enumerate(zip(of.scores.logprobs, of.scores.tops, strict=True)):
                        assert of.scores.first + place not in told, "a score was told twice"
                        assert of.handle not in self.tokens, "a score came after a token"
                        told[of.scores.first + place] = score
                for handle, attempt, index, token in zip(
                    news.handles, news.attempts, news.indices, news.token_ids, strict=True
                ):
                    self.tokens.setdefault(handle, []).append((attempt, index, token))
                self.ended |= {ended.handle: ended for ended in news.ended}
