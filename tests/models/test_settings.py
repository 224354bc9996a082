"""Reading config.json: the rotary embedding means what transformers takes it to mean, or is refused by name."""

import pytest
from transformers import LlamaConfig

from segue.errors import CheckpointError
from segue.models.settings import Settings, read_rope

SCALED = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}, "rope_theta": 5e5},
        {"rope_scaling": SCALED, "rope_theta": 5e5},
        {"rope_scaling": SCALED | {"rope_theta": 2e4}, "rope_theta": 5e5},
        {"rope_scaling": SCALED, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}, "rope_theta": 5e5},
    ],
)
def test_the_rotary_embedding_is_the_one_that_transformers_reads(fields: dict[str, object]) -> None:
    read = read_rope(Settings(fields))
    meant = LlamaConfig.from_dict(dict(fields)).rope_parameters
    assert meant is not None
    assert isinstance(meant, dict)
    assert (read.theta, read.scaling) == (meant["rope_theta"], meant.get("factor"))


def test_rotary_embeddings_by_layer_type_are_refused_by_name() -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(CheckpointError, match=r"rope_parameters by layer type \(full_attention, sliding_attention\)"):
        read_rope(Settings({"rope_parameters": nested}))
