"""Requests straight to a worker's port, without router or HTTP: token ids in, token ids out."""

import asyncio
import uuid
from collections.abc import Sequence

from benchmarks.refusal import Refused
from segue.batch.sampling import SamplingParams
from segue.errors import ServingError
from segue.ids import Handle, RequestId, RouterId
from segue.wire import Attach, Attached, GenerateSpec, StepNews, WorkerStatus
from segue.wire.client import SessionCall, WorkerClient

CALL_S = 30.0


async def ask_together(
    address: str, prompts: Sequence[Sequence[int]], output_tokens: int, *, prefill: str = ""
) -> list[list[int]]:
    """Greedy answers of the worker at `address`; all prompts at once. `prefill` is who computes them for it.

    Raises Refused when a request is not taken or ends with an error.
    """
    router_id, client = RouterId(f"benchmark-{uuid.uuid4().hex[:8]}"), WorkerClient(address)
    call = client.session()
    try:
        await call.write(Attach(router_id))
        while not isinstance(await call.read(), Attached):
            continue
        handles = [
            (await client.generate(_spec(router_id, index, prompt, output_tokens, prefill), CALL_S)).handle
            for index, prompt in enumerate(prompts)
        ]
        return await _answers(call, handles)
    except ServingError as error:
        raise Refused(f"the worker at {address}: {error.message}") from error
    finally:
        call.cancel()
        await client.close()


async def ask_in_turn(
    address: str, prompts: Sequence[Sequence[int]], output_tokens: int, *, prefill: str
) -> list[list[int]]:
    """The same, each prompt after the one before has ended."""
    return [(await ask_together(address, [prompt], output_tokens, prefill=prefill))[0] for prompt in prompts]


async def status_of(address: str) -> WorkerStatus:
    """What a worker says of itself."""
    client = WorkerClient(address)
    try:
        return await client.status(CALL_S)
    finally:
        await client.close()


async def _answers(call: SessionCall, handles: Sequence[Handle]) -> list[list[int]]:
    tokens: dict[int, list[int]] = {handle: [] for handle in handles}
    left = set(handles)
    async with asyncio.timeout(600.0):
        while left:
            if not isinstance(news := await call.read(), StepNews):
                continue
            for handle, token in zip(news.handles, news.token_ids, strict=True):
                tokens[handle].append(token)
            for ended in news.ended:
                if ended.error is not None:
                    raise Refused(f"request {handles.index(ended.handle)} ended with {ended.error.message}")
                left.discard(ended.handle)
    return [tokens[handle] for handle in handles]


def _spec(
    router_id: RouterId, index: int, prompt: Sequence[int], output_tokens: int, prefill_address: str
) -> GenerateSpec:
    return GenerateSpec(
        router_id=router_id,
        request_id=RequestId(f"{router_id}-{index}"),
        attempt=1,
        prompt=tuple(prompt),
        sampling=SamplingParams(seed=0, temperature=0.0, max_tokens=output_tokens),
        prefill_address=prefill_address,
    )
