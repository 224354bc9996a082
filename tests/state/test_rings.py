"""Rings are for models whose matrices can all be left behind, by one rule; others are told which layer cannot."""

from dataclasses import replace

import pytest

from segue.errors import ConfigError
from segue.kernels.recurrence.memory import RecurrentShape
from segue.kernels.recurrence.rule import Rule
from segue.state.rings import require_replay, row_bytes
from segue.state.spec import ComponentName, DType, LayerRecord, ModelState, StateTensor

SHAPE = RecurrentShape(rule=Rule.GATED_DELTA, groups=2, heads=3, key_dim=4, value_dim=8)
LAYERS = (1, 4, 6)


def declared(*records: LayerRecord) -> ModelState:
    """Three recurrent layers with a convolution beside each matrix, and an attention layer."""
    conv = [StateTensor(layer, "conv", ComponentName.RECURRENT, 2, (3, 8), DType.BFLOAT16) for layer in LAYERS]
    keys = StateTensor(0, "k", ComponentName.FULL, 2, (8,), DType.BFLOAT16)
    return ModelState.of([keys, *conv, *map(SHAPE.state, LAYERS)], records)


def record(layer: int, rule: Rule = Rule.GATED_DELTA) -> LayerRecord:
    return replace(SHAPE, rule=rule).record(layer, DType.BFLOAT16)


def refusal(state: ModelState) -> str:
    with pytest.raises(ConfigError, match=r"engine.replay_length is above 1, but model 'some'") as refused:
        require_replay(state, "some")
    return str(refused.value)


@pytest.mark.parametrize("rule", Rule)
def test_layers_of_one_rule_can_all_be_left_behind(rule: Rule) -> None:
    require_replay(declared(*(record(layer, rule) for layer in LAYERS)), "some")


@pytest.mark.parametrize("missing", LAYERS)
def test_a_matrix_without_records_is_named_by_its_layer(missing: int) -> None:
    state = declared(*(record(layer) for layer in LAYERS if layer != missing))
    assert f"no replay kernel for the matrix state of layer {missing};" in refusal(state)


def test_a_model_without_any_records_is_refused() -> None:
    assert "no replay kernel for the matrix state of layer 1;" in refusal(declared())


def test_two_recurrences_in_one_model_are_named_by_their_layers() -> None:
    state = declared(record(1), record(4), record(6, Rule.KIMI_DELTA))
    assert "two recurrences, 'gdn' in layer 1 and 'kda' in layer 6;" in refusal(state)


def test_models_without_matrices_are_refused() -> None:
    keys = StateTensor(0, "k", ComponentName.FULL, 2, (8,), DType.BFLOAT16)
    conv = StateTensor(1, "conv", ComponentName.RECURRENT, 2, (3, 8), DType.BFLOAT16)
    assert "has no recurrent layers;" in refusal(ModelState.of([keys]))
    assert "has recurrent layers without matrix states;" in refusal(ModelState.of([keys, conv]))


def test_a_row_holds_the_records_of_all_layers() -> None:
    # A correction of 3 x 8 and a key of 4, in two bytes each, and three sums of decays in four, for both head groups.
    assert row_bytes([record(layer) for layer in LAYERS], 8) == 7 * 3 * 2 * (2 * (24 + 4) + 4 * 3)
