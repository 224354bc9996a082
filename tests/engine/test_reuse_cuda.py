"""On a GPU a reused prefix gives the output of a computed one: copies of checkpoints keep to the stream's order."""

from pathlib import Path

import pytest

import segue.zoo
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.build import load_engine
from segue.config import EngineConfig
from segue.engine import Engine
from segue.ids import Handle, RequestId, RouterId
from segue.weights.folder import ModelFolder

BUNDLED = Path(segue.zoo.__path__[0]) / "model"


def engine(*, prefix_cache: bool) -> Engine:
    config = EngineConfig(
        model=BUNDLED, device="cuda", prefix_cache=prefix_cache, max_running=4, max_len=1024, state_bytes=128 << 20
    )
    return load_engine(config, ModelFolder.open(BUNDLED)).engine


def outputs(made: Engine, prompts: list[list[int]], first_handle: int) -> tuple[list[list[int]], int]:
    """Greedy outputs of all prompts at once, and how many prompt tokens were reused."""
    handles = [Handle(first_handle + index) for index in range(len(prompts))]
    for handle, prompt in zip(handles, prompts, strict=True):
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=48, ignore_eos=True)
        spec = GenerateSpec(
            router_id=RouterId("r"),
            request_id=RequestId(f"q{handle}"),
            attempt=0,
            prompt=tuple(prompt),
            sampling=sampling,
        )
        made.submit(spec, handle)
    tokens: dict[Handle, list[int]] = {handle: [] for handle in handles}
    reused = 0
    while (record := made.launch()) is not None:
        news = made.commit(record)
        for handle, token in zip(news.handles, news.tokens, strict=True):
            tokens[handle].append(token.token_id)
        reused += sum(end.usage.cached_tokens for end in news.ended)
        made.check()
    return [tokens[handle] for handle in handles], reused


@pytest.mark.gpu
def test_a_reused_prefix_gives_the_same_output_on_cuda() -> None:
    text = [5 + (7 * i + i * i) % 2000 for i in range(400)]
    prompts = [[*text[:300], *text[300 + 10 * i : 340 + 10 * i]] for i in range(4)]
    cold, none = outputs(engine(prefix_cache=False), prompts, 1)
    assert none == 0
    warm = engine(prefix_cache=True)
    first, reused = outputs(warm, prompts, 1)
    assert reused == 3 * 256
    again, reused = outputs(warm, prompts, 11)
    assert reused == 4 * 320
    turns = [[*prompt, *output, *text[:20]] for prompt, output in zip(prompts, again, strict=True)]
    second, reused = outputs(warm, turns, 21)
    assert reused >= 4 * 320
    assert first == again == cold
    assert second == outputs(engine(prefix_cache=False), turns, 1)[0]
