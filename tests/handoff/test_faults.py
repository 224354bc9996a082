"""Workers that die or freeze in the middle of a handoff: nothing is lost for ever, and nothing wrong is ever used."""

import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from segue.batch.sampling import SamplingParams
from segue.errors import PrefillUnavailable, ServingError, TransferFailed
from segue.wire import GenerateSpec
from tests.decode_service.router_end import RouterEnd, spec
from tests.handoff.pair import Answer, answer_of
from tests.handoff.processes import Apart, apart, quarantined, whole

pytestmark = pytest.mark.cluster

PROMPT = tuple(3 + i * 37 % 2000 for i in range(2000))


@pytest.fixture(scope="module", params=["nixl", "grpc"])
def started(request: pytest.FixtureRequest) -> Iterator[tuple[str, Apart]]:
    with apart(request.param) as workers:
        yield request.param, workers


@pytest.fixture
def workers(started: tuple[str, Apart]) -> Apart:
    started[1].restore()
    return started[1]


@pytest.fixture
def transport(started: tuple[str, Apart]) -> str:
    return started[0]


def asked(workers: Apart, name: str, length: int = len(PROMPT)) -> GenerateSpec:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=8, ignore_eos=True)
    return replace(
        spec(name),
        prompt=PROMPT[:length],
        sampling=sampling,
        prefill_address=workers.prefill.address,
        # A prompt that is cached is not on its way for long.
        cache_salt=uuid.uuid4().hex,
    )


def on_its_way(workers: Apart) -> None:
    """Until a part of some prompt has been computed under a promise, and more is to come."""
    workers.decode.until(lambda status: status.promised == 1)
    before = workers.prefill.status().steps
    workers.prefill.until(lambda status: status.steps > before)


async def broken(workers: Apart, signal_to_prefill: signal.Signals) -> ServingError:
    """How a request ends whose prefill worker gets a signal in the middle of it."""
    async with RouterEnd(workers.decode.address) as router, router.attach() as stream:
        handle = await router.generate(asked(workers, "lost"))
        on_its_way(workers)
        workers.prefill.send(signal_to_prefill)
        await stream.until(lambda a: handle in a.ended)
        assert answer_of(stream, handle).tokens == []
        error = stream.ended[handle].error
        assert error is not None
        return error


async def served(workers: Apart) -> Answer:
    """A short request, after which both workers are whole."""
    async with RouterEnd(workers.decode.address) as router, router.attach() as stream:
        handle = await router.generate(asked(workers, "served", 300))
        await stream.until(lambda a: handle in a.ended)
        workers.decode.until(whole)
        workers.prefill.until(whole)
        return answer_of(stream, handle)


async def test_a_killed_prefill_worker_costs_an_error_and_no_page(workers: Apart) -> None:
    before = await served(workers)
    error = await broken(workers, signal.SIGKILL)
    assert isinstance(error, PrefillUnavailable | TransferFailed)
    workers.decode.until(whole)
    workers.prefill.close()
    workers.restore()
    assert await served(workers) == before


async def test_a_frozen_prefill_worker_is_fenced_until_it_answers(workers: Apart, transport: str) -> None:
    before = await served(workers)
    error = await broken(workers, signal.SIGSTOP)
    assert isinstance(error, PrefillUnavailable | TransferFailed)
    # Bytes that come as messages of a call end with it; others could still be written.
    fenced = quarantined(workers.decode.until(lambda status: status.promised == 0))
    assert bool(fenced) == (transport == "nixl")
    workers.prefill.wake()
    assert await served(workers) == before


async def test_a_frozen_prefill_worker_is_fenced_until_it_is_killed(workers: Apart, transport: str) -> None:
    await broken(workers, signal.SIGSTOP)
    fenced = quarantined(workers.decode.until(lambda status: status.promised == 0))
    assert bool(fenced) == (transport == "nixl")
    workers.prefill.kill()
    workers.decode.until(whole)


async def test_a_killed_decode_worker_leaves_nothing_on_the_prefill_worker(workers: Apart) -> None:
    before = await served(workers)
    async with RouterEnd(workers.decode.address) as router, router.attach():
        await router.generate(asked(workers, "lost"))
        on_its_way(workers)
        workers.decode.kill()
    workers.prefill.until(whole)
    workers.restore()
    assert await served(workers) == before


async def test_a_frozen_decode_worker_holds_nothing_on_the_prefill_worker(workers: Apart) -> None:
    before = await served(workers)
    async with RouterEnd(workers.decode.address) as router, router.attach():
        await router.generate(asked(workers, "lost"))
        on_its_way(workers)
        workers.decode.send(signal.SIGSTOP)
        workers.prefill.until(whole)
        workers.decode.wake()
    workers.decode.until(whole)
    assert await served(workers) == before
