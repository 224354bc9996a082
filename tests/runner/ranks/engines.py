"""Small engines of one or several ranks, stepped by hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from segue.batch.request import EmittedToken
from segue.batch.sampling import SamplingParams
from segue.build import BuiltEngine, load_engine
from segue.config import EngineConfig
from segue.ids import Handle
from segue.weights.folder import ModelFolder
from segue.wire import GenerateSpec
from tests.decode_service.router_end import spec
from tests.support.checkpoints import VOCAB


@contextmanager
def engine(folder: Path, **changes: object) -> Iterator[BuiltEngine]:
    """Ended with all its ranks when the block ends."""
    config = EngineConfig(
        model=folder,
        threads=1,
        page_tokens=8,
        state_bytes=4 << 20,
        max_running=8,
        max_len=256,
        step_tokens=64,
        chunk_tokens=16,
    )
    built = load_engine(replace(config, **changes), ModelFolder.open(folder))  # type: ignore[arg-type]
    try:
        yield built
    finally:
        if built.crew is not None:
            built.crew.close()


def asking(count: int = 5, output: int = 30) -> list[GenerateSpec]:
    """Prompts of 20 tokens and more; every third is sampled."""
    asked = []
    for number in range(count):
        sampling = SamplingParams(
            seed=number, temperature=0.0 if number % 3 else 0.8, max_tokens=output + number, logprobs=0, ignore_eos=True
        )
        prompt = tuple(2 + (31 * number + 7 * i + i * i) % (VOCAB - 2) for i in range(20 + 13 * number))
        asked.append(replace(spec(f"q{number}"), prompt=prompt, sampling=sampling))
    return asked


def answers(built: BuiltEngine, asked: Sequence[GenerateSpec]) -> list[list[EmittedToken]]:
    """The output of each, all computed together."""
    found: list[list[EmittedToken]] = [[] for _ in asked]
    for number, one in enumerate(asked):
        built.engine.submit(one, Handle(number))
    while not built.engine.idle:
        record = built.engine.launch()
        assert record is not None
        news = built.engine.commit(record)
        for handle, token in zip(news.handles, news.tokens, strict=True):
            found[handle].append(token)
    built.engine.check()
    return found
