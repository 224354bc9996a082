"""Handoffs between two real processes over each transport: the receiver ends with the sender's state, to the bit."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.support.handoff_process import HandoffProcess, handoff_pair
from tests.support.handoff_worker import Script, Setting

pytestmark = pytest.mark.cluster

TRANSPORTS = {
    "nixl-cma": Setting(transport="nixl"),
    "nixl-tcp": Setting(transport="nixl", ucx_tls="tcp"),
    "grpc": Setting(transport="grpc"),
}
# Pages of one token, and pages longer than the window.
GEOMETRIES = {"page-1": (1, 6), "page-8": (8, 3)}

CLEAN = {"held": 0, "reserved": 0, "quarantined": 0, "in_flight": 0}

Pair = tuple[HandoffProcess, HandoffProcess]


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str, str], Pair]]:
    """Sender and receiver of a transport and geometry; each pair is started once, whatever the order of the tests."""
    with ExitStack() as stack:
        pairs: dict[tuple[str, str], Pair] = {}

        def start(transport: str, geometry: str) -> Pair:
            if (transport, geometry) not in pairs:
                page_tokens, window = GEOMETRIES[geometry]
                setting = replace(TRANSPORTS[transport], page_tokens=page_tokens, window=window)
                pairs[transport, geometry] = stack.enter_context(handoff_pair(setting, setting))
            return pairs[transport, geometry]

        yield start


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=GEOMETRIES)
def pair(request: pytest.FixtureRequest, transport: str, started: Callable[[str, str], Pair]) -> Pair:
    return started(transport, str(request.param))


@pytest.mark.parametrize(
    ("prompt_tokens", "held_tokens", "checkpoint"),
    [(1, 0, None), (8, 8, None), (13, 0, 8), (24, 8, 16), (25, 16, 24), (57, 0, 16)],
)
def test_state_arrives_whole(pair: Pair, prompt_tokens: int, held_tokens: int, checkpoint: int | None) -> None:
    sender, receiver = pair
    script = Script(
        request=f"q{prompt_tokens}", prompt_tokens=prompt_tokens, held_tokens=held_tokens, checkpoint=checkpoint
    )
    answer = receiver.receive(sender, script)
    assert answer.get("whole") is True, answer
    for process in pair:
        process.until(**CLEAN)


def test_a_digest_that_does_not_match_ends_the_request_and_no_other(pair: Pair) -> None:
    sender, receiver = pair
    bad = receiver.receive(sender, Script(request="bad", prompt_tokens=21, checkpoint=8, damage=True))
    assert bad["error"] == "DigestMismatch"
    assert "request bad (attempt 1" in bad["message"]
    assert "full positions [0, 21)" in bad["message"]
    for process in pair:
        process.until(**CLEAN)
    assert receiver.receive(sender, Script(request="good", prompt_tokens=21)).get("whole") is True


def test_a_receiver_with_too_few_pages_says_so_and_neither_side_keeps_any(pair: Pair) -> None:
    sender, receiver = pair
    # The sender just has room for it; the receiver also wants pages for the first tokens that it will decode.
    pages, page_tokens = sender.state()["pages"], sender.state()["page_tokens"]
    answer = receiver.receive(sender, Script(request="large", prompt_tokens=pages * page_tokens, chunk=1000))
    assert answer["error"] == "PoolExhausted"
    for process in pair:
        process.until(**CLEAN)
