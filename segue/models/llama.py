"""The Llama family: full attention with rotary positions, dense feed-forward layers."""

from collections.abc import Mapping

from segue.models.dense import build_dense
from segue.models.options import BuildOptions
from segue.models.parts import read_layer_types
from segue.models.settings import Settings
from segue.runner.context import Model
from segue.weights.source import WeightSource

FULL = "full_attention"


def build(config: Mapping[str, object], weights: WeightSource, options: BuildOptions) -> Model:
    """Raises CheckpointError when config.json asks for what the family does not have, or a tensor is missing or
    surplus.
    """
    settings = Settings(config)
    settings.require("mlp_bias", settings.flag("mlp_bias", False), False)
    kinds = read_layer_types(settings, [FULL] * settings.integer("num_hidden_layers"), {FULL})
    return build_dense(settings, weights, options, kinds, head_norm_epsilon=None)
