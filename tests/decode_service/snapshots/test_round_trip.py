"""A request that is taken out of one engine goes on in another as if nothing had been, whatever the two are like."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.news import Ended, Usage
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import SnapshotSourceMismatch
from segue.ids import Handle, RequestId, RouterId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec
from tests.decode_service.snapshots.rooms import room
from tests.support.checkpoints import FULL, LINEAR, SLIDING, VOCAB, lara_mini_config, write_checkpoint

TRAITS = {
    "full": (FULL, FULL),
    "full+window": (SLIDING, FULL),
    "full+recurrent": (LINEAR, FULL),
    "all": (LINEAR, SLIDING, FULL, LINEAR),
}
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    made: dict[str, Path] = {}

    def model(traits: str) -> Path:
        if traits not in made:
            config = lara_mini_config(*TRAITS[traits], window=24)
            made[traits] = write_checkpoint(config, tmp_path_factory.mktemp("model")).folder
        return made[traits]

    return model


def asking(prompt: int = 37, output: int = 40, temperature: float = 0.0) -> GenerateSpec:
    sampling = SamplingParams(
        seed=2**63 - 5,
        temperature=temperature,
        top_p=1.0 if temperature == 0 else 0.9,
        max_tokens=output,
        ignore_eos=True,
        logprobs=2,
        presence_penalty=0.3,
    )
    return GenerateSpec(
        router_id=RouterId("r"),
        request_id=RequestId("q"),
        attempt=0,
        prompt=tuple((7 * i) % VOCAB for i in range(1, prompt + 1)),
        sampling=sampling,
    )


def whole(model: Path, folder: Path, spec: GenerateSpec, **settings: object) -> list[EmittedToken]:
    with room(model, folder, **settings) as made:
        handle = made.submit(spec)
        made.run()
        return made.tokens[handle]


def moved(
    model: Path, folder: Path, spec: GenerateSpec, before: int, source: dict[str, object], target: dict[str, object]
) -> list[EmittedToken]:
    """The output with a move after `before` tokens. Nothing is extended after it, and nothing is left."""
    with room(model, folder, **source) as made:
        handle = made.submit(spec)
        made.until(handle, before)
        written = made.take(handle, served=before)
        first = made.tokens[handle]
        assert made.ended == [Ended(Handle(1), 0, FinishReason.MOVED, made.ended[0].usage, None, written.snapshot_id)]
        assert not made.step()
        assert made.engine.idle
        assert all(pool.held == 0 for pool in made.engine.status().pools)
    with room(model, folder, **target) as made:
        made.restore(spec, written.snapshot_id, [token.token_id for token in first])
        made.run()
        status = made.engine.status()
        assert status.prefill_tokens == 0
        assert status.retraction.restored == 1
        assert made.engine.idle
        assert list(folder.iterdir()) == [] or not any(one.is_dir() for one in folder.iterdir())
        return first + made.tokens[Handle(1)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("traits", TRAITS)
def test_tokens_and_logprobs_are_those_of_an_undisturbed_run(
    models: Models, tmp_path: Path, traits: str, temperature: float
) -> None:
    model, spec = models(traits), asking(temperature=temperature)
    assert moved(model, tmp_path, spec, 10, {}, {}) == whole(model, tmp_path, spec)


@pytest.mark.parametrize(("source", "target"), [(1, 64), (64, 1), (16, 64)])
def test_another_page_size_is_no_obstacle(models: Models, tmp_path: Path, source: int, target: int) -> None:
    model, spec = models("all"), asking(70)
    there: dict[str, object] = {"page_tokens": target, "state_bytes": 6 << 20}
    assert moved(model, tmp_path, spec, 33, {"page_tokens": source}, there) == whole(model, tmp_path, spec)


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "target"), [(1, 2), *(pytest.param(2, ranks, marks=pytest.mark.long) for ranks in (1, 2))]
)
def test_another_number_of_ranks_is_no_obstacle(models: Models, tmp_path: Path, source: int, target: int) -> None:
    model, spec = models("all"), asking()
    found = moved(model, tmp_path, spec, 10, {"tp": source}, {"tp": target})
    wanted = whole(model, tmp_path, spec)
    assert [token.token_id for token in found] == [token.token_id for token in wanted]
    assert [token.logprob for token in found] == pytest.approx([token.logprob for token in wanted], abs=1e-4)


@pytest.mark.parametrize(("prompt", "before"), [(1, 1), (1, 2), (63, 1), (64, 1), (65, 2), (128, 3), (300, 1)])
def test_odd_lengths_pass(models: Models, tmp_path: Path, prompt: int, before: int) -> None:
    model, spec = models("all"), asking(prompt, 12)
    assert moved(model, tmp_path, spec, before, {}, {}) == whole(model, tmp_path, spec)


@pytest.mark.parametrize(
    ("traits", "source", "target"),
    [
        ("all", 64, 8),
        ("all", 1, 16),
        ("full+window", 8, 8),
        pytest.param("all", 8, 8, marks=pytest.mark.long),
        pytest.param("full+window", 64, 8, marks=pytest.mark.long),
        pytest.param("full+window", 1, 16, marks=pytest.mark.long),
    ],
)
def test_the_next_turn_finds_only_pages_that_came_whole(
    models: Models, tmp_path: Path, traits: str, source: int, target: int
) -> None:
    model, spec = models(traits), asking(37, 9)
    with room(model, tmp_path, page_tokens=target) as made:
        made.submit(spec)
        made.run()
        said = [token.token_id for token in made.tokens[Handle(1)]]
    # The next turns go on from each page that the window of the restored state reaches, and a little further.
    turns = [replace(asking(1, 3), prompt=(*(*spec.prompt, *said)[:length], 3)) for length in range(32, 47)]
    usual = [whole(model, tmp_path, turn, page_tokens=target) for turn in turns]
    with room(model, tmp_path, page_tokens=source) as made:
        made.until(made.submit(spec), 4)
        written = made.take(Handle(1))
    with room(model, tmp_path, page_tokens=target) as made:
        made.restore(spec, written.snapshot_id, said[:4])
        made.run()
        for number, (turn, wanted) in enumerate(zip(turns, usual, strict=True), 2):
            made.submit(turn, number)
            made.run()
            assert made.tokens[Handle(number)] == wanted


def test_what_was_reused_of_the_prompt_is_told_however_often_it_is_moved(models: Models, tmp_path: Path) -> None:
    model, spec = models("full+window"), asking(37, 20)
    with room(model, tmp_path, page_tokens=8) as made:
        made.submit(spec)
        made.run()
        handle = made.submit(spec, 2)
        made.until(handle, 4)
        (cached,) = [one.cached_tokens for one in made.engine.live_requests()]
        assert cached > 0
        written, known = made.take(handle), [token.token_id for token in made.tokens[handle]]
    for number in range(2):
        with room(model, tmp_path, page_tokens=8) as made:
            handle = made.restore(spec, written.snapshot_id, known)
            made.until(handle, 1)
            known += [token.token_id for token in made.tokens[handle]]
            if number == 0:
                written = made.take(handle)
                continue
            made.run()
            assert made.ended[-1].usage == Usage(37, 20, cached)


def logprobs_in(folder: Path, snapshot_id: str) -> list[float | None]:
    manifest = SnapshotFolder.open(SnapshotConfig(folder=str(folder))).read(snapshot_id).manifest
    return [token.logprob for token in manifest.request.output]


def test_a_logprob_that_nobody_here_knows_stays_unknown(models: Models, tmp_path: Path) -> None:
    model, spec = models("full"), asking(37, 20)
    known = whole(model, tmp_path, spec)
    given = [token.token_id for token in known[:5]]
    wanted = [None] * 5 + [token.logprob for token in known[5:8]]
    with room(model, tmp_path) as made:
        handle = made.submit(replace(spec, emitted=tuple(given)))
        made.until(handle, 3)
        written = made.take(handle)
    assert logprobs_in(tmp_path, written.snapshot_id) == wanted
    with room(model, tmp_path) as made:
        # Whoever has not been told of them would have to be told what nobody knows.
        with pytest.raises(SnapshotSourceMismatch, match="does not know"):
            made.open(spec, written.snapshot_id, given[:4])
        handle = made.restore(spec, written.snapshot_id, given)
        made.until(handle, 4)
        again = made.take(handle)
        assert made.tokens[handle] == known[5:9]
    assert logprobs_in(tmp_path, again.snapshot_id) == [*wanted, known[8].logprob]


def test_a_logprob_that_nobody_asked_for_is_unknown(models: Models, tmp_path: Path) -> None:
    model, spec = models("full"), asking(37, 20)
    spec = replace(spec, sampling=replace(spec.sampling, logprobs=None))
    with room(model, tmp_path) as made:
        handle = made.submit(spec)
        made.until(handle, 3)
        written = made.take(handle)
        assert logprobs_in(tmp_path, written.snapshot_id) == [None] * 3
        made.restore(spec, written.snapshot_id, [], 2)
        assert [token.logprob for token in made.tokens[Handle(2)]] == [None] * 3
