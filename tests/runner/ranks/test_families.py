"""A model on several ranks is the model on one, but for the order in which sums are taken."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PretrainedConfig

from segue.errors import ConfigError
from tests.runner.ranks.engines import answers, asking, engine
from tests.support.checkpoints import lara_mini_config, llama_config, qwen3_config, write_checkpoint

NEAR = 1e-4
# Two KV heads and two groups of recurrent heads: of four ranks two share each.
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "lara": lara_mini_config,
    "experts": lambda: lara_mini_config(experts=4),
    "qwen": qwen3_config,
    "llama": lambda: llama_config(attention_bias=True),
}


@pytest.mark.long
@pytest.mark.parametrize("family", ["lara", *(pytest.param(name, marks=pytest.mark.long) for name in [*FAMILIES][1:])])
@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_family_on_several_ranks_puts_out_the_same(tmp_path: Path, family: str, tp: int) -> None:
    write_checkpoint(FAMILIES[family](), tmp_path)
    asked = asking()
    with engine(tmp_path) as one:
        right = answers(one, asked)
    with engine(tmp_path, tp=tp) as several:
        found = answers(several, asked)
    for ours, theirs in zip(found, right, strict=True):
        assert [token.token_id for token in ours] == [token.token_id for token in theirs]
        assert [token.logprob for token in ours] == pytest.approx([token.logprob for token in theirs], abs=NEAR)


@pytest.mark.parametrize("tp", [pytest.param(2, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.slow)])
def test_deterministic_ranks_do_not_depend_on_the_batch(hybrid: Path, tp: int) -> None:
    asked = asking()
    with engine(hybrid, tp=tp, deterministic=True) as built:
        together = answers(built, asked)
    with engine(hybrid, tp=tp, deterministic=True, max_running=1, chunk_tokens=7) as built:
        assert answers(built, asked) == together


@pytest.mark.long
@pytest.mark.parametrize("replay_length", [1, 8])
def test_second_turns_go_on_from_what_all_ranks_left(hybrid: Path, replay_length: int) -> None:
    """First turns end on the grid: their slots are donated, behind pending records where there are rings."""
    first = [
        replace(one, sampling=replace(one.sampling, max_tokens=65 - len(one.prompt), temperature=0.0))
        for one in asking(3)
    ]
    turns: list[list[list[int]]] = []
    for tp in (1, 2):
        with engine(hybrid, replay_length=replay_length, tp=tp) as built:
            said = [[token.token_id for token in one] for one in answers(built, first)]
            second = [
                replace(one, prompt=(*one.prompt, *tokens, 5, 6, 7)) for one, tokens in zip(first, said, strict=True)
            ]
            said += [[token.token_id for token in one] for one in answers(built, second)]
            status = built.engine.status()
            assert sum(hits.tokens for hits in status.cache.hits) == 64 * len(first)
            assert (status.replay.folds_read > 0) == (replay_length > 1)
            turns.append(said)
    assert turns[0] == turns[1]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (llama_config(num_attention_heads=2, num_key_value_heads=1), "2 query heads cannot be dealt out over 4"),
        (
            llama_config(num_attention_heads=12, num_key_value_heads=3, hidden_size=96),
            "3 key and value heads cannot be dealt out over 4",
        ),
        (llama_config(intermediate_size=3), "3 dims of a layer cannot be dealt out over 4"),
        (lara_mini_config(moe_intermediate_size=2), "2 dims of an expert cannot be dealt out over 4"),
        (
            lara_mini_config(linear_num_key_heads=3, linear_num_value_heads=3),
            "3 linear key heads cannot be dealt out over 4",
        ),
    ],
)
def test_heads_that_cannot_be_dealt_out_are_refused(tmp_path: Path, config: PretrainedConfig, what: str) -> None:
    write_checkpoint(config, tmp_path)
    with pytest.raises(ConfigError, match=what), engine(tmp_path, tp=4):
        pass
