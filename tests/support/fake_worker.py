"""A worker without an engine: a real gRPC server that speaks the whole protocol and answers from a script.

It computes nothing. What it says for a prompt is a function of the prompt; when it says it, and what goes wrong on the
way, is up to the test.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingDefaults
from segue.errors import ServingError, SnapshotNotReady
from segue.ids import Handle, WorkerId
from segue.tokens import EmittedToken
from segue.v1 import worker_pb2 as pb
from segue.v1.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from segue.wire import (
    Attach,
    Attached,
    CacheFigures,
    Cancel,
    Ended,
    Finish,
    GenerateSpec,
    Heartbeat,
    PoolStatus,
    PromptScores,
    ReplayFigures,
    RetractionFigures,
    Scores,
    StepNews,
    Top,
    Usage,
    WorkerDescription,
    WorkerMessage,
    WorkerStatus,
    description_to_proto,
    generate_from_proto,
    router_message_from_proto,
    status_to_proto,
    worker_message_to_proto,
)
from tests.support.fake_folder import FakeFolder
from tests.support.fake_snapshots import FakeSnapshots, refuse

Answer = Callable[[GenerateSpec], Sequence[int]]
WAIT_S = 20.0


@dataclass(slots=True)
class FakeChoice:
    """A live choice: all tokens of its output so far, those a continuation began with included."""

    handle: Handle
    spec: GenerateSpec
    answer: Sequence[int]
    output: list[int] = field(default_factory=list)
    told: int = 0
    # Positions before these have their scores, and the router was told of them.
    scored: int = 0
    scores_told: int = 0

    @property
    def wanted(self) -> int:
        """Alternatives for each token."""
        return self.spec.sampling.logprobs or 0

    @property
    def scores_left(self) -> int:
        return 0 if self.spec.score_from is None else len(self.spec.prompt) - self.scored

    @property
    def reason(self) -> FinishReason | None:
        if self.scores_left:
            return None
        if len(self.output) >= len(self.answer):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.output) >= self.spec.sampling.max_tokens else None


def score_of(prompt: Sequence[int], position: int, wanted: int) -> tuple[float, Top]:
    """What a prompt token scores: a multiple of 1/8, exact in every float, that tells tokens and positions apart."""
    logprob = -(prompt[position] % 64) - position / 8
    return logprob, tuple((prompt[position] + rank, logprob - rank) for rank in range(wanted))


def output_token(token: int, wanted: int) -> EmittedToken:
    """What is said of an output token."""
    return EmittedToken(token, -0.5, tuple((token + rank, -0.5 - rank) for rank in range(wanted)))


class FakeWorker(WorkerServicer):
    """Serves while entered. `paused`, it says a token of every live choice for each `step`, else as fast as it can."""

    def __init__(
        self,
        answer: Answer,
        *,
        worker_id: str = "w",
        model: str = "fake",
        vocab_size: int = 2048,
        max_len: int = 4096,
        cached_tokens: int = 0,
        defaults: SamplingDefaults | None = None,
        paused: bool = False,
        role: str = "both",
        fingerprint: str = "f" * 16,
        folder: FakeFolder | None = None,
    ) -> None:
        self._answer = answer
        self._description = WorkerDescription(
            worker_id=WorkerId(worker_id),
            role=role,
            model_name=model,
            fingerprint=fingerprint,
            vocab_size=vocab_size,
            max_len=max_len,
            eos_token_ids=(4,),
            page_tokens=64,
            deterministic=True,
            defaults=defaults or SamplingDefaults(),
            snapshots=folder is not None,
        )
        self.snapshots = FakeSnapshots(folder or FakeFolder())
        self._cached_tokens = cached_tokens
        self.paused = paused
        self.silent = False
        self.deaf = False
        self.deciding = asyncio.Event()
        self.deciding.set()
        self.attaching = asyncio.Event()
        self.attaching.set()
        self.refusals: list[ServingError] = []
        # Given to every request that is to go on from a snapshot.
        self.refuses_snapshots: ServingError | None = None
        self.early_tokens = 0
        self.scores_each = 3
        self.cache = CacheFigures()
        self.retraction = RetractionFigures()
        self.replay = ReplayFigures()
        self.tp_size = 1
        self.live: dict[Handle, FakeChoice] = {}
        self.specs: list[GenerateSpec] = []
        self.attaches: list[Attach] = []
        self.cancels: list[Cancel] = []
        self.finishes: list[Finish] = []
        # What the router has last said of where its choices could go on.
        self.elsewhere = False
        # What it says of itself; one that is ending drains.
        self.draining = False
        self.ending = False
        self.port = 0
        self._handles = itertools.count(1)
        self._numbers = itertools.count(1)
        self._outgoing: asyncio.Queue[WorkerMessage | None] | None = None
        self._changed: set[asyncio.Future[None]] = set()
        self._steps: asyncio.Task[None] | None = None
        self._server = grpc.aio.server()
        add_WorkerServicer_to_server(self, self._server)

    async def __aenter__(self) -> Self:
        await self.start(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int) -> None:
        """Listens on `port` (0: any)."""
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        self._steps = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Dies: every call breaks off at once."""
        if self._steps is not None:
            self._steps.cancel()
            await asyncio.gather(self._steps, return_exceptions=True)
        await self._server.stop(None)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something that happened here makes `condition` true."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                change = asyncio.get_running_loop().create_future()
                self._changed.add(change)
                await change

    def step(self, count: int = 1) -> None:
        """Says the next `count` tokens of every live choice, each count in a step of its own.

        Of a prompt that is scored, `scores_each` scores come with each step, and no token before the last of them.
        """
        for _ in range(count):
            for choice in list(self.live.values()):
                if choice.scores_left:
                    choice.scored += min(self.scores_each, choice.scores_left)
                elif choice.reason is None:
                    choice.output.append(choice.answer[len(choice.output)])
            self._tell()

    def say(self, news: StepNews) -> None:
        """Says exactly this, whatever it means."""
        assert self._outgoing is not None, "no router is attached"
        self._outgoing.put_nowait(news)

    def end(self, handle: Handle, reason: FinishReason, error: ServingError | None = None) -> None:
        """Ends a choice before its answer does."""
        choice = self.live.pop(handle)
        ended = Ended(handle, choice.spec.attempt, reason, self._usage(choice), error)
        self.say(StepNews(next(self._numbers), ended=[ended]))

    def break_stream(self) -> None:
        """The session breaks off; the worker lives on with all it holds."""
        assert self._outgoing is not None, "no router is attached"
        self._outgoing.put_nowait(None)
        self._outgoing = None

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.WorkerDescription:  # noqa: N802, ANN401
        if self.deaf:
            await asyncio.get_running_loop().create_future()
        return description_to_proto(self._description)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.WorkerStatus:  # noqa: N802, ANN401
        pool = PoolStatus(
            component="full", capacity=11, free=3, held=5, cached=2, reserved=0, quarantined=0, sink=1, unit_bytes=1
        )
        return status_to_proto(
            WorkerStatus(
                worker_id=self._description.worker_id,
                ready=True,
                running=len(self.live),
                waiting=0,
                steps=next(self._numbers),
                generated_tokens=0,
                prefill_tokens=0,
                tp_size=self.tp_size,
                pools=(pool,),
                cache=self.cache,
                retraction=self.retraction,
                replay=self.replay,
            )
        )

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateReply:  # noqa: N802, ANN401
        spec = generate_from_proto(request)
        self.specs.append(spec)
        self._note()
        await self.deciding.wait()
        if self.refusals:
            self._note()
            await refuse(context, self.refusals.pop(0))
        if spec.snapshot_id and self.refuses_snapshots is not None:
            self._note()
            await refuse(context, self.refuses_snapshots)
        there = spec.snapshot_id in self.snapshots.folder.manifests
        restored = bool(spec.snapshot_id) and (there or not spec.snapshot_doubtful)
        if restored:
            await self.snapshots.take_out(spec.snapshot_id, context)
        handle = Handle(next(self._handles))
        choice = FakeChoice(handle, spec, self._answer(spec), list(spec.emitted), len(spec.emitted))
        if spec.score_from is not None:
            choice.scored = choice.scores_told = spec.score_from + 1
        self.live[handle] = choice
        for _ in range(self.early_tokens):
            self.step()
        self._note()
        return pb.GenerateReply(handle=handle, restored=restored)

    async def TakeSnapshot(self, request: pb.TakeSnapshotRequest, context: Any) -> pb.TakeSnapshotReply:  # noqa: N802, ANN401
        asked = await self.snapshots.asked_for(request, context, self._note)
        choice = self.live.get(asked.handle) or self.snapshots.standing.get(asked.handle)
        if choice is None:
            await refuse(context, SnapshotNotReady("the request is not here"))
        output = [output_token(token, choice.wanted) for token in choice.output]
        taken = self.snapshots.folder.write(choice.spec, output, asked)
        self._note()
        await self.snapshots.durable.wait()
        # One that has ended meanwhile has not left.
        if not asked.copy and self.live.pop(asked.handle, None) is not None and not self.snapshots.mute:
            usage = self._usage(choice)
            ended = Ended(asked.handle, asked.attempt, FinishReason.MOVED, usage, snapshot_id=taken.snapshot_id)
            self.say(StepNews(next(self._numbers), ended=[ended]))
        self._note()
        return await self.snapshots.reply(taken, context)

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Any) -> pb.ListSnapshotsReply:  # noqa: N802, ANN401
        return await self.snapshots.list(context)

    async def InspectSnapshot(self, request: pb.InspectSnapshotRequest, context: Any) -> pb.InspectSnapshotReply:  # noqa: N802, ANN401
        return await self.snapshots.inspect(request, context)

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Any) -> pb.DeleteSnapshotReply:  # noqa: N802, ANN401
        return await self.snapshots.delete(request, context)

    async def Session(self, messages: Any, context: Any) -> AsyncIterator[pb.WorkerMessage]:  # noqa: N802, ANN401
        attach = router_message_from_proto(await anext(messages))
        assert isinstance(attach, Attach), "a session begins with Attach"
        outgoing = self._outgoing = asyncio.Queue()
        self._resume(attach)
        reading = asyncio.create_task(self._read(messages, outgoing))
        try:
            await self.attaching.wait()
            while (message := await outgoing.get()) is not None:
                yield worker_message_to_proto(message)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke, as the test wanted")

    def _resume(self, attach: Attach) -> None:
        self.attaches.append(attach)
        named = {resume.handle: resume for resume in attach.resume}
        unknown = tuple(handle for handle in named if handle not in self.live)
        self.live = {handle: choice for handle, choice in self.live.items() if handle in named}
        for handle, choice in self.live.items():
            choice.told, choice.scores_told = named[handle].next_index, named[handle].next_position
        assert self._outgoing is not None, "a session that is resumed has a stream"
        self._outgoing.put_nowait(Attached(self._description.worker_id, unknown))
        self._tell()
        self._note()

    async def _read(self, messages: Any, outgoing: asyncio.Queue[WorkerMessage | None]) -> None:  # noqa: ANN401
        async for raw in messages:
            message = router_message_from_proto(raw)
            match message:
                case Cancel():
                    self.cancels.append(message)
                    choice = self.live.pop(message.handle, None)
                    if choice is not None and self.snapshots.stands:
                        self.snapshots.standing[message.handle] = choice
                case Finish():
                    self.finishes.append(message)
                    choice = self.live.pop(message.handle, None)
                    if choice is not None:
                        usage = Usage(len(choice.spec.prompt), message.kept, self._cached_tokens)
                        ended = Ended(message.handle, message.attempt, FinishReason.STOP, usage)
                        outgoing.put_nowait(StepNews(next(self._numbers), ended=[ended]))
                case Heartbeat():
                    self.elsewhere = message.elsewhere
                    if not self.silent:
                        draining = self.draining or self.ending
                        outgoing.put_nowait(Heartbeat(message.sequence, draining=draining, ending=self.ending))
            self._note()

    async def _run(self) -> None:
        while True:
            await self.until(lambda: bool(self.live) and not self.paused and self._outgoing is not None)
            self.step()
            await asyncio.sleep(0)

    def _tell(self) -> None:
        """One step's message: what each live choice has said since it was last told, and which of them ended."""
        if self._outgoing is None:
            return
        entries: list[tuple[int, int, int, int, float, Top]] = []
        ended: list[Ended] = []
        scores: list[PromptScores] = []
        for handle, choice in list(self.live.items()):
            if choice.scores_told < choice.scored:
                told = [
                    score_of(choice.spec.prompt, at, choice.wanted) for at in range(choice.scores_told, choice.scored)
                ]
                said = Scores(choice.scores_told, [logprob for logprob, _ in told], [top for _, top in told])
                scores.append(PromptScores(handle, choice.spec.attempt, said))
                choice.scores_told = choice.scored
            for index in range(choice.told, len(choice.output)):
                token, logprob, top = output_token(choice.output[index], choice.wanted)
                assert logprob is not None, "every token has one"
                entries.append((handle, choice.spec.attempt, index, token, logprob, top))
            choice.told = len(choice.output)
            if choice.reason is not None:
                del self.live[handle]
                ended.append(Ended(handle, choice.spec.attempt, choice.reason, self._usage(choice)))
        if entries or ended or scores:
            self._outgoing.put_nowait(self._news(entries, ended, scores))
            self._note()

    def _news(
        self,
        entries: Sequence[tuple[int, int, int, int, float, Top]],
        ended: Sequence[Ended],
        scores: Sequence[PromptScores],
    ) -> StepNews:
        return StepNews(
            next(self._numbers),
            [entry[0] for entry in entries],
            [entry[1] for entry in entries],
            [entry[2] for entry in entries],
            [entry[3] for entry in entries],
            [entry[4] for entry in entries],
            [entry[5] for entry in entries],
            ended,
            scores,
        )

    def _usage(self, choice: FakeChoice) -> Usage:
        return Usage(len(choice.spec.prompt), len(choice.output), self._cached_tokens)

    def _note(self) -> None:
        changed, self._changed = self._changed, set()
        for change in changed:
            if not change.done():
                change.set_result(None)
