"""Conversations with a worker over its port: several requests at once, each with all that a stream tells of it."""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.refusal import Refused
from segue.batch.sampling import SamplingParams
from segue.errors import ServingError
from segue.ids import Handle, RequestId, RouterId
from segue.wire import Attach, Attached, GenerateSpec, StepNews
from segue.wire.client import SessionCall, WorkerClient

CALL_S = 600.0
TOP_LOGPROBS = 20


@dataclass(slots=True)
class Output:
    """What came of one request so far: tokens, and of each its logprob and the best alternatives."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cached_tokens: int = 0
    decoding: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the second token: a step has decoded the first."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: ServingError | None = None


class Conversations:
    """An attached session. Made by `attached`."""

    def __init__(self, router_id: RouterId, client: WorkerClient) -> None:
        self._router_id, self._client = router_id, client
        # News may come before the call that began the request returns.
        self._outputs: defaultdict[Handle, Output] = defaultdict(Output)
        self._count = 0

    async def begin(self, prompt: Sequence[int], output: int, *, prefill: str = "") -> Output:
        """A greedy request that runs to its budget. `prefill` is who may compute the prompt for the worker."""
        self._count += 1
        sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=output, ignore_eos=True, logprobs=TOP_LOGPROBS)
        spec = GenerateSpec(
            router_id=self._router_id,
            request_id=RequestId(f"{self._router_id}-{self._count}"),
            attempt=1,
            prompt=tuple(prompt),
            sampling=sampling,
            prefill_address=prefill,
        )
        try:
            return self._outputs[(await self._client.generate(spec, CALL_S)).handle]
        except ServingError as error:
            raise Refused(f"request {self._count} was not taken: {error.message}") from error

    async def end(self, output: Output) -> Output:
        """The same output, complete. Raises Refused when the request ended with an error."""
        await output.ended.wait()
        if output.error is not None:
            raise Refused(f"a request ended with: {output.error.message}")
        return output

    async def read(self, call: SessionCall) -> None:
        """Takes in what the worker says until the session ends, which ends what still runs with an error."""
        try:
            while True:
                if isinstance(message := await call.read(), StepNews):
                    self._take(message)
        except ServingError as error:
            for output in self._outputs.values():
                output.error = output.error or error
                output.decoding.set()
                output.ended.set()

    def _take(self, news: StepNews) -> None:
        for index, handle in enumerate(news.handles):
            output = self._outputs[Handle(handle)]
            output.tokens.append(news.token_ids[index])
            output.logprobs.append(news.logprobs[index])
            output.tops.append(news.tops[index])
            if len(output.tokens) > 1:
                output.decoding.set()
        for ended in news.ended:
            output = self._outputs[Handle(ended.handle)]
            output.cached_tokens, output.error = ended.usage.cached_tokens, ended.error
            output.decoding.set()
            output.ended.set()


@asynccontextmanager
async def attached(address: str) -> AsyncIterator[Conversations]:
    """A session with the worker at `address`."""
    router_id, client = RouterId(f"benchmark-{uuid.uuid4().hex[:8]}"), WorkerClient(address)
    call = client.session()
    try:
        await call.write(Attach(router_id))
        while not isinstance(await call.read(), Attached):
            continue
        conversations = Conversations(router_id, client)
        reading = asyncio.create_task(conversations.read(call))
        try:
            yield conversations
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
    finally:
        call.cancel()
        await client.close()
