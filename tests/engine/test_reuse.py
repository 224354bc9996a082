"""Prefixes outlive their requests: what is reused, what is computed again, and that nobody can tell from the output.

The engine is real, model included (random weights with a long memory), in deterministic mode: a reused prefix gives the
same bits as a computed one.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from segue.batch.news import Ended
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.build import BuiltEngine, load_engine
from segue.config import EngineConfig
from segue.errors import ConfigError
from segue.ids import Handle, RequestId, RouterId
from segue.tokens import EmittedToken
from segue.weights.folder import ModelFolder
from tests.support.checkpoints import VOCAB, lara_mini_config, llama_config, qwen3_config, write_checkpoint

PAGE = 16
GRID = 64
INTERVAL = 64


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of all three components."""
    return write_checkpoint(lara_mini_config(), tmp_path_factory.mktemp("hybrid")).folder


@dataclass
class Bench:
    """An engine that runs requests to their end and remembers what came of them."""

    built: BuiltEngine
    ended: dict[Handle, Ended] = field(default_factory=dict)
    tokens: dict[Handle, list[EmittedToken]] = field(default_factory=dict)

    def submit(self, prompt: list[int], *, output: int = 8, salt: str = "") -> Handle:
        handle = Handle(len(self.tokens) + 1)
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=output, ignore_eos=True, logprobs=2)
        spec = GenerateSpec(
            router_id=RouterId("r"),
            request_id=RequestId(f"q{handle}"),
            attempt=0,
            prompt=tuple(prompt),
            sampling=sampling,
            cache_salt=salt,
        )
        self.built.engine.submit(spec, handle)
        self.tokens[handle] = []
        return handle

    def run(self) -> None:
        """Until nothing is left to do; checks everything after each step."""
        engine = self.built.engine
        while (record := engine.launch()) is not None:
            news = engine.commit(record)
            for handle, token in zip(news.handles, news.tokens, strict=True):
                self.tokens[handle].append(token)
            self.ended |= {end.handle: end for end in (*news.ended, *engine.take_ended())}
            engine.check()

    def ask(self, prompt: list[int], *, output: int = 8, salt: str = "") -> tuple[list[EmittedToken], int]:
        """Output, and how many prompt tokens were reused."""
        handle = self.submit(prompt, output=output, salt=salt)
        self.run()
        return self.tokens[handle], self.ended[handle].usage.cached_tokens

    @property
    def prefilled(self) -> int:
        return self.built.engine.status().prefill_tokens


def bench(folder: Path, **settings: object) -> Bench:
    chosen: dict[str, object] = {
        "page_tokens": PAGE,
        "track_interval": INTERVAL,
        "max_running": 4,
        "max_len": 1024,
        "chunk_tokens": 96,
        "state_bytes": 8 << 20,
    }
    config = EngineConfig(model=folder, deterministic=True, threads=1, **(chosen | settings))  # type: ignore[arg-type]
    return Bench(load_engine(config, ModelFolder.open(folder)))


def cold(folder: Path, prompt: list[int], output: int = 8) -> list[EmittedToken]:
    """The output of an engine that has never seen anything."""
    return bench(folder, prefix_cache=False).ask(prompt, output=output)[0]


def tokens(count: int, start: int = 0) -> list[int]:
    return [2 + (start + 7 * i + i * i) % (VOCAB - 2) for i in range(count)]


def test_a_prompt_asked_again_starts_at_its_checkpoint(hybrid: Path) -> None:
    engine = bench(hybrid)
    prompt = tokens(200)
    first, reused = engine.ask(prompt)
    assert reused == 0
    again, reused = engine.ask(prompt)
    assert reused == 192
    assert again == first == cold(hybrid, prompt)


@pytest.mark.parametrize("length", [1, PAGE, GRID, GRID + 1, 2 * GRID, 2 * GRID + 1])
def test_at_least_one_token_is_always_computed(hybrid: Path, length: int) -> None:
    engine = bench(hybrid)
    prompt = tokens(length)
    first, _ = engine.ask(prompt)
    before = engine.prefilled
    again, reused = engine.ask(prompt)
    assert again == first
    assert reused == (length - 1) // GRID * GRID
    assert engine.prefilled - before == length - reused


def test_a_second_turn_costs_what_is_new_since_the_last_checkpoint(hybrid: Path) -> None:
    engine = bench(hybrid)
    prompt = tokens(100)
    output, _ = engine.ask(prompt, output=150)
    known = 100 + 150
    turn = [*prompt, *(token.token_id for token in output), *tokens(10, start=3)]
    second, reused = engine.ask(turn)
    # The last token's own state was never computed.
    assert reused == (known - 1) // INTERVAL * INTERVAL
    assert second == cold(hybrid, turn)


def test_where_prompts_part_a_checkpoint_is_left_for_the_next(hybrid: Path) -> None:
    engine = bench(hybrid)
    shared = tokens(200)
    reuse = [engine.ask([*shared, *tokens(90, start)])[1] for start in (1, 2, 3)]
    # The first leaves its own checkpoints only, of which 192 is none when chunks of 96 end at 64, 128, 192: it is.
    assert reuse == [0, 192, 192]
    wide = bench(hybrid, chunk_tokens=512)
    reuse = [wide.ask([*shared, *tokens(90, start)])[1] for start in (1, 2, 3)]
    assert reuse == [0, 0, 192]


def test_a_shared_prefix_is_computed_once_by_requests_that_come_together(hybrid: Path) -> None:
    engine = bench(hybrid, chunk_tokens=512)
    shared = tokens(200)
    prompts = [[*shared, *tokens(20, start)] for start in range(4)]
    handles = [engine.submit(prompt) for prompt in prompts]
    engine.run()
    assert engine.prefilled == 220 + 3 * (220 - 192)
    assert [engine.ended[handle].usage.cached_tokens for handle in handles] == [0, 192, 192, 192]
    for handle, prompt in zip(handles, prompts, strict=True):
        assert engine.tokens[handle] == cold(hybrid, prompt)


def test_nothing_is_shared_across_salts(hybrid: Path) -> None:
    engine = bench(hybrid)
    prompt = tokens(200)
    engine.ask(prompt, salt="one")
    assert engine.ask(prompt, salt="two")[1] == 0
    assert engine.ask(prompt, salt="one")[1] == 192


def test_a_cancelled_request_publishes_nothing_that_it_had_not(hybrid: Path) -> None:
    engine = bench(hybrid, chunk_tokens=512)
    prompt = tokens(200)
    handle = engine.submit(prompt)
    record = engine.built.engine.launch()
    assert record is not None
    engine.built.engine.cancel(handle, 0)
    engine.built.engine.commit(record)
    engine.built.engine.check()
    assert all(pool.held == pool.cached == 0 for pool in engine.built.engine.status().pools)


def test_a_stop_found_by_the_router_publishes_what_is_kept(hybrid: Path) -> None:
    engine = bench(hybrid)
    prompt = tokens(100)
    handle = engine.submit(prompt, output=200)
    for _ in range(100):
        record = engine.built.engine.launch()
        assert record is not None
        engine.tokens[handle] += engine.built.engine.commit(record).tokens
    kept = [token.token_id for token in engine.tokens[handle]][:50]
    engine.built.engine.finish(handle, 0, 50)
    engine.built.engine.check()
    assert engine.ask([*prompt, *kept, *tokens(20, 5)])[1] == 128


def test_the_state_is_donated_at_the_end_when_no_slot_is_to_be_spent(hybrid: Path) -> None:
    engine = bench(hybrid, page_tokens=1, checkpoint_strategy="no_buffer")
    prompt = tokens(100)
    output, _ = engine.ask(prompt, output=30)
    turn = [*prompt, *(token.token_id for token in output), *tokens(10, start=3)]
    second, reused = engine.ask(turn)
    assert reused == 129
    assert second == cold(hybrid, turn)
    assert engine.ask([*prompt, *tokens(5, 9)])[1] == 100


def test_donating_needs_pages_of_one_token(hybrid: Path) -> None:
    with pytest.raises(ConfigError, match="needs pages of 1 token"):
        bench(hybrid, checkpoint_strategy="no_buffer")


def test_an_interval_off_the_grid_is_refused(hybrid: Path) -> None:
    with pytest.raises(ConfigError, match="no multiple of the checkpoint grid"):
        bench(hybrid, track_interval=80)


@pytest.mark.parametrize("page_tokens", [5, 64, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 16))])
def test_page_sizes_change_nothing(hybrid: Path, page_tokens: int) -> None:
    engine = bench(hybrid, page_tokens=page_tokens, track_interval=0, max_len=900, state_bytes=32 << 20)
    prompt = tokens(400)
    first, _ = engine.ask(prompt, output=3)
    again, reused = engine.ask(prompt, output=3)
    assert again == first == cold(hybrid, prompt, 3)
    grid = 320 if page_tokens == 5 else GRID
    assert reused == 399 // grid * grid


@pytest.mark.parametrize(
    "config",
    [llama_config(), qwen3_config(), qwen3_config("sliding_attention", "full_attention", "sliding_attention")],
    ids=["full", "qwen3", "full and window"],
)
def test_without_recurrent_state_every_page_edge_can_be_resumed(config: object, tmp_path: Path) -> None:
    folder = write_checkpoint(config, tmp_path).folder  # type: ignore[arg-type]
    engine = bench(folder)
    prompt = tokens(100)
    output, _ = engine.ask(prompt, output=45)
    turn = [*prompt, *(token.token_id for token in output), *tokens(10, start=3)]
    second, reused = engine.ask(turn)
    assert reused == (100 + 45 - 1) // PAGE * PAGE
    assert second == cold(folder, turn)
