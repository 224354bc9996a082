"""A frozen worker is killed by whoever keeps it up: what it could still write to is free again, and another serves."""

import itertools
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.deployment import Deployment, deployed, gone
from tests.cluster.test_faults import answer, asked, client, completed, tokens, until_promised, until_readiness

SILENCE_S = 4.0


@pytest.fixture(scope="module")
def watched() -> Iterator[Deployment]:
    """A deployment that kills what has answered nothing for `SILENCE_S`."""
    with deployed("serve.health_s=0.2", f"serve.health_timeout_s={SILENCE_S}", "transfer.transports=nixl") as running:
        yield running


def killed(watched: Deployment, name: str, ill: int, starts: int, frozen_at: float) -> None:
    """Waits until the process `ill` was killed for its silence, in time, and another serves in its place."""
    gone(ill, SILENCE_S + 10)
    assert time.monotonic() - frozen_at > SILENCE_S - 1
    watched.until(lambda: any(f"{name} 0 answered nothing for" in line for line in watched.lines), "the kill")
    watched.restarted(name, starts)
    until_readiness(watched, 200)
    watched.emptied()


def test_of_a_prefill_worker_frozen_in_a_transfer_no_page_stays_in_quarantine(watched: Deployment) -> None:
    until_readiness(watched, 200)
    undisturbed = completed(watched)
    ill = watched.ready("prefill")[-1][1]
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(completed, watched)
        until_promised(watched)
        frozen_at = time.monotonic()
        starts = watched.kill("prefill", signal.SIGSTOP)
        assert asking.result(60) == undisturbed
    killed(watched, "prefill", ill, starts, frozen_at)


def test_a_stream_goes_on_when_the_worker_that_decodes_it_is_frozen_and_killed(watched: Deployment) -> None:
    until_readiness(watched, 200)
    undisturbed = answer(watched)
    ill = watched.ready("decode")[-1][1]
    with client(watched) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        frozen_at = time.monotonic()
        starts = watched.kill("decode", signal.SIGSTOP)
        assert begun + list(stream) == undisturbed
    killed(watched, "decode", ill, starts, frozen_at)


def test_a_frozen_router_is_killed_and_comes_back_where_it_was(watched: Deployment) -> None:
    until_readiness(watched, 200)
    url, ill = watched.url, watched.ready("router")[-1][1]
    starts = watched.kill("router", signal.SIGSTOP)
    gone(ill, SILENCE_S + 10)
    watched.restarted("router", starts)
    assert watched.url == url
    until_readiness(watched, 200)
    assert len(answer(watched)) == 60
