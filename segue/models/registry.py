"""Which family builds which architecture."""

from collections.abc import Callable, Mapping

from segue.errors import CheckpointError
from segue.models import lara_mini, llama, qwen3
from segue.models.options import BuildOptions
from segue.runner.context import Model
from segue.weights.source import WeightSource

Build = Callable[[Mapping[str, object], WeightSource, BuildOptions], Model]

FAMILIES: dict[str, Build] = {
    "LaraMiniForCausalLM": lara_mini.build,
    "LlamaForCausalLM": llama.build,
    "Qwen3ForCausalLM": qwen3.build,
}


def build_model(config: Mapping[str, object], weights: WeightSource, options: BuildOptions) -> Model:
    """The model that config.json describes. Raises CheckpointError when no family knows its architecture."""
    named = config.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name](config, weights, options)
    raise CheckpointError(
        f"architecture {', '.join(names) or 'none'} is not supported ({', '.join(sorted(FAMILIES))} are)"
    )
