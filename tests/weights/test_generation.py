"""generation_config.json: where eos ids come from, and which values are refused."""

import pytest

from segue.batch.sampling import SamplingDefaults
from segue.errors import CheckpointError
from segue.weights.generation import GenerationDefaults


def test_one_eos_id_and_a_list_of_them_are_both_read() -> None:
    assert GenerationDefaults.of({"eos_token_id": 4}, {}).eos_token_ids == (4,)
    assert GenerationDefaults.of({"eos_token_id": [4, 7]}, {}).eos_token_ids == (4, 7)


def test_the_models_config_counts_where_the_generation_config_has_no_eos() -> None:
    assert GenerationDefaults.of({}, {"eos_token_id": 9}).eos_token_ids == (9,)
    assert GenerationDefaults.of({"eos_token_id": 4}, {"eos_token_id": 9}).eos_token_ids == (4,)
    assert GenerationDefaults.of({}, {}).eos_token_ids == ()


def test_a_greedy_model_has_temperature_zero() -> None:
    assert GenerationDefaults.of({"do_sample": False, "temperature": 0.6}, {}).sampling.temperature == 0.0
    assert GenerationDefaults.of({"do_sample": True, "temperature": 0.6}, {}).sampling.temperature == 0.6
    assert GenerationDefaults.of({}, {}).sampling == SamplingDefaults()


def test_suggested_sampling_values_are_read() -> None:
    defaults = GenerationDefaults.of({"top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}, {}).sampling
    assert (defaults.top_p, defaults.top_k, defaults.min_p, defaults.repetition_penalty) == (0.8, 20, 0.0, 1.05)


@pytest.mark.parametrize("value", ["4", -1, True, [4, "5"], [[4]]])
def test_an_eos_id_that_is_no_token_id_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id is"):
        GenerationDefaults.of({"eos_token_id": value}, {})


@pytest.mark.parametrize("generation", [{"temperature": "hot"}, {"top_k": 1.5}, {"top_p": True}])
def test_a_sampling_value_of_the_wrong_type_is_named(generation: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=rf"{next(iter(generation))} in generation_config\.json"):
        GenerationDefaults.of(generation, {})


@pytest.mark.parametrize(
    "generation", [{"temperature": -1}, {"top_p": 0}, {"repetition_penalty": 1e-309}, {"min_p": 2}]
)
def test_a_suggested_value_that_no_request_may_have_is_refused_at_load(generation: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(generation))):
        GenerationDefaults.of(generation, {})
