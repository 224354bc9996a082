"""Under Ray, an engine that breaks or hangs, or a frozen process, costs its replica: another takes its place."""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import APIError

from tests.cluster.deployment import Deployment, deployed_on_ray, gone
from tests.cluster.test_faults import answer, asked, client, tokens, until_readiness

# A hung engine answers no question for its health; three of those in a row are too many.
QUICK = ("ray.health_s=0.5", "ray.health_timeout_s=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test says which engine is to fail."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Iterator[Deployment]:
    """A deployment on Ray whose engines fail on demand."""
    with deployed_on_ray(*QUICK, command=("-m", "tests.cluster.faulty_serve", str(folder))) as running:
        yield running


def test_a_stream_goes_on_when_the_engine_that_decodes_it_hangs(faulty: Deployment, folder: Path) -> None:
    until_readiness(faulty, 200)
    undisturbed = answer(faulty)
    ill, starts = faulty.ready("decode")[-1][1], len(faulty.ready("decode"))
    with client(faulty) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        (folder / "hang-decode").touch()
        assert begun + list(stream) == undisturbed
    replaced(faulty, "decode", ill, starts)
    assert answer(faulty) == undisturbed


def test_a_stream_that_a_broken_engine_held_ends_with_an_error_and_the_next_is_answered(
    faulty: Deployment, folder: Path
) -> None:
    until_readiness(faulty, 200)
    undisturbed = answer(faulty)
    ill, starts = faulty.ready("decode")[-1][1], len(faulty.ready("decode"))
    with client(faulty) as openai:
        stream = tokens(asked(openai))
        next(stream)
        (folder / "break-decode").touch()
        # It may be the request that breaks engines, so no other is given it.
        with pytest.raises(APIError, match="broke an invariant"):
            list(stream)
        replaced(faulty, "decode", ill, starts)
    assert answer(faulty) == undisturbed


# An engine that hangs is told from one that works by the same question, whatever its role.
@pytest.mark.parametrize("fault", ["break", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_request_survives_the_engine_that_computes_its_prompt(faulty: Deployment, folder: Path, fault: str) -> None:
    until_readiness(faulty, 200)
    undisturbed = answer(faulty)
    ill, starts = faulty.ready("prefill")[-1][1], len(faulty.ready("prefill"))
    (folder / f"{fault}-prefill").touch()
    assert answer(faulty) == undisturbed
    replaced(faulty, "prefill", ill, starts)
    assert answer(faulty) == undisturbed


def test_a_frozen_replica_is_killed_and_replaced(faulty: Deployment) -> None:
    until_readiness(faulty, 200)
    undisturbed = answer(faulty)
    ill = faulty.ready("prefill")[-1][1]
    starts = faulty.kill("prefill", signal.SIGSTOP)
    replaced(faulty, "prefill", ill, starts)
    assert answer(faulty) == undisturbed


def replaced(faulty: Deployment, role: str, ill: int, starts: int) -> None:
    """Waits until another replica serves in the place of the process `ill`, which has ended."""
    faulty.restarted(role, starts)
    gone(ill, 30)
    until_readiness(faulty, 200)
    faulty.emptied()
