"""The Qwen 3 dense family: full or sliding attention with normed queries and keys, dense feed-forward layers."""

from collections.abc import Mapping

from segue.models.dense import build_dense
from segue.models.options import BuildOptions
from segue.models.parts import COMPONENT, read_layer_types
from segue.models.settings import Settings
from segue.runner.context import Model
from segue.weights.source import WeightSource


def build(config: Mapping[str, object], weights: WeightSource, options: BuildOptions) -> Model:
    """Raises CheckpointError when config.json asks for what the family does not have, or a tensor is missing or
    surplus.
    """
    settings = Settings(config)
    count, slides = settings.integer("num_hidden_layers"), settings.flag("use_sliding_window", False)
    # Without explicit layer types the layers from max_window_layers on slide, if any do.
    first = min(settings.integer("max_window_layers", 28), count) if slides else count
    default = ["full_attention"] * first + ["sliding_attention"] * (count - first)
    kinds = read_layer_types(settings, default, set(COMPONENT))
    if not slides and "sliding_attention" in kinds:
        settings.require("use_sliding_window", slides, True)
    return build_dense(settings, weights, options, kinds, head_norm_epsilon=settings.number("rms_norm_eps", 1e-6))
