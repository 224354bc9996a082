"""Workers of several tensor-parallel ranks: equal and unequal degrees on the two sides move the same state."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from segue.wire import GenerateSpec
from tests.handoff.movers import moving
from tests.handoff.pair import Answer, alone, paired
from tests.handoff.test_retraction import FORCED
from tests.handoff.test_retraction import asking as asking_for

NEAR = 1e-4


def asking(count: int) -> list[GenerateSpec]:
    return [asking_for(number, 20 + 13 * number, 12 + number) for number in range(count)]


def alike(found: Sequence[Answer], right: Sequence[Answer]) -> None:
    """The same tokens, and logprobs but for the order in which sums are taken."""
    for one, other in zip(found, right, strict=True):
        assert one.error is None
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=NEAR)


@pytest.mark.parametrize(
    ("prefill", "decode", "transport"),
    [
        pytest.param(2, 1, "grpc", marks=pytest.mark.long),
        (1, 2, "nixl"),
        pytest.param(2, 2, "local", marks=pytest.mark.long),
        *(
            pytest.param(prefill, decode, transport, marks=pytest.mark.slow)
            for transport in ("nixl", "grpc")
            for prefill in (1, 2, 4)
            for decode in (1, 2, 4)
        ),
    ],
)
async def test_any_two_degrees_hand_over_a_whole_state(hybrid: Path, prefill: int, decode: int, transport: str) -> None:
    """Digests are compared at every handoff; the checkpoint has two KV heads, so of four ranks two share each."""
    asked = asking(4)
    async with paired(
        hybrid, transports=transport, prefill={"tp": prefill}, decode={"tp": decode}, max_len=256
    ) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        handoffs = (await pair.decode.worker.status()).transfers.count
    alike(found, await alone(hybrid, asked, max_len=256))
    assert handoffs == len(asked)


@pytest.mark.parametrize(
    ("family", "kv_dtype", "prefill", "decode"),
    [
        pytest.param("hybrid", "fp8", 2, 2, marks=pytest.mark.long),
        pytest.param("hybrid", "fp8", 2, 1, marks=pytest.mark.slow),
        pytest.param("hybrid", "fp8", 1, 4, marks=pytest.mark.slow),
        *(
            # Both families and both ways, each once.
            pytest.param(
                family, kv_dtype, *tps, marks=pytest.mark.long if (kv_dtype, tps) == usual else pytest.mark.slow
            )
            for family, usual in (("sliding", ("", (1, 2))), ("dense", ("", (2, 1))))
            for kv_dtype in ("", "fp8")
            for tps in ((1, 2), (2, 1))
        ),
    ],
)
async def test_every_kind_of_state_passes_between_degrees(
    family: str, kv_dtype: str, prefill: int, decode: int, request: pytest.FixtureRequest
) -> None:
    """Without recurrent state, without window, and with keys and values in 8 bits, whose scales go with their heads."""
    folder: Path = request.getfixturevalue(family)
    asked = asking(4)
    async with paired(
        folder, transports="nixl", prefill={"tp": prefill}, decode={"tp": decode}, kv_dtype=kv_dtype, max_len=256
    ) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        degrees = [(await worker.status()).tp_size for worker in (pair.prefill.worker, pair.decode.worker)]
        handoffs = (await pair.decode.worker.status()).transfers.count
    alike(found, await alone(folder, asked, kv_dtype=kv_dtype, max_len=256))
    assert degrees == [prefill, decode]
    assert handoffs == len(asked)


@pytest.mark.parametrize(
    ("family", "kv_dtype"),
    [
        pytest.param("hybrid", "", marks=pytest.mark.long),
        pytest.param("sliding", "", marks=pytest.mark.slow),
        *(pytest.param(family, "fp8", marks=pytest.mark.slow) for family in ("hybrid", "sliding", "dense")),
    ],
)
async def test_retraction_on_two_ranks_changes_no_bit(
    family: str, kv_dtype: str, request: pytest.FixtureRequest
) -> None:
    """Into tensors of a request where there is recurrent state, into a pool of pages where there is none."""
    folder: Path = request.getfixturevalue(family)
    asked = asking(6)
    both: dict[str, object] = {"tp": 2, "kv_dtype": kv_dtype}
    async with paired(folder, prefill=both, decode=both, max_len=256) as pair:
        right = await pair.ask(asked)
    async with paired(folder, prefill=both, decode=both, max_len=256, retraction=FORCED) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = (await pair.decode.worker.status()).retraction
    assert found == right
    assert seen.by_test == seen.resumed > 5
    assert (seen.recomputed, seen.mismatched) == (0, 0)
    assert {pool.name for pool in seen.host} == {
        "hybrid": {"host_bytes"},
        "sliding": {"host_full", "host_window"},
        "dense": {"host_full"},
    }[family]
    assert not any(pool.held for pool in seen.host)


@pytest.mark.long
@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1)])
async def test_a_running_request_moves_between_workers_of_unlike_degrees(
    hybrid: Path, source: int, target: int
) -> None:
    asked = [asking_for(number, 20 + 13 * number, 60) for number in range(2)]
    async with moving(hybrid, source={"tp": source}, target={"tp": target}, max_len=256) as movers:
        found = await movers.switched(asked)
        status = await movers.target.status()
        await movers.target.emptied()
    alike(found, await alone(hybrid, asked, max_len=256))
    assert (status.transfers.moved_in, status.prefill_tokens) == (2, 0)
