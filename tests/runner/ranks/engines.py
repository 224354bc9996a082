"""Small engines of one or several ranks, stepped by hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from segue.build import BuiltEngine, load_engine
from segue.ids import Handle
from segue.tokens import EmittedToken
from segue.weights.folder import ModelFolder
from segue.wire import GenerateSpec
from tests.handoff.pair import engine_config
from tests.handoff.test_retraction import asking as asking_for

SMALL: dict[str, object] = {"deterministic": False, "state_bytes": 4 << 20, "max_len": 256, "chunk_tokens": 16}


@contextmanager
def engine(folder: Path, **changes: object) -> Iterator[BuiltEngine]:
    """Ended with all its ranks when the block ends."""
    built = load_engine(engine_config(folder, "both", **{**SMALL, **changes}), ModelFolder.open(folder))
    try:
        yield built
    finally:
        if built.crew is not None:
            built.crew.close()


def asking(count: int = 5, output: int = 30) -> list[GenerateSpec]:
    """Prompts of 20 tokens and more."""
    return [asking_for(number, 20 + 13 * number, output + number) for number in range(count)]


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
