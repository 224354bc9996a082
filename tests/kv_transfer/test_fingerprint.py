"""Two processes exchange state only when everything that gives the bytes a meaning is equal."""

import subprocess
import sys
from dataclasses import replace

import pytest

from kv_transfer.fingerprint import Fingerprint, config_digest, describe_layouts, require_equal
from segue.errors import FingerprintMismatch
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName, DType, ModelState, StateTensor


def state(shape: tuple[int, ...] = (16, 8), dtype: DType = DType.FLOAT32) -> ModelState:
    return ModelState.of(
        [
            StateTensor(0, "k", ComponentName.FULL, 4, (16,), DType.BFLOAT16),
            StateTensor(1, "matrix", ComponentName.RECURRENT, 4, shape, dtype),
        ]
    )


def fingerprint(model: ModelState | None = None, shard: Shard | None = None) -> Fingerprint:
    shard = shard or Shard()
    return Fingerprint(
        model_config="c0",
        weights="w0",
        compute_dtype="float32",
        page_tokens=64,
        window=None,
        kernel_chunk=64,
        components=describe_layouts(layouts(model or state(), 64, shard)),
        protocol_version=1,
    )


OURS = fingerprint()


def test_equal_processes_agree() -> None:
    require_equal(fingerprint(), fingerprint())
    assert fingerprint().hex == fingerprint().hex


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("model_config", replace(OURS, model_config="c1")),
        ("weights", replace(OURS, weights="w1")),
        ("compute_dtype", replace(OURS, compute_dtype="bfloat16")),
        ("page_tokens", replace(OURS, page_tokens=32)),
        ("window", replace(OURS, window=127)),
        ("kernel_chunk", replace(OURS, kernel_chunk=32)),
        ("protocol_version", replace(OURS, protocol_version=2)),
    ],
)
def test_each_differing_field_is_named_with_both_values(name: str, theirs: Fingerprint) -> None:
    with pytest.raises(FingerprintMismatch) as caught:
        require_equal(OURS, theirs)
    assert f"{name}: ours {getattr(OURS, name)}, theirs {getattr(theirs, name)}" in caught.value.message
    assert OURS.hex != theirs.hex


def test_only_differing_fields_are_named() -> None:
    with pytest.raises(FingerprintMismatch) as caught:
        require_equal(fingerprint(), replace(fingerprint(), weights="w1", page_tokens=128))
    assert "weights" in caught.value.message
    assert "page_tokens" in caught.value.message
    assert "window" not in caught.value.message


def test_a_transposed_square_state_of_the_same_size_is_refused() -> None:
    ours, theirs = fingerprint(state((16, 8))), fingerprint(state((8, 16)))
    with pytest.raises(FingerprintMismatch, match="component recurrent"):
        require_equal(ours, theirs)


def test_another_state_dtype_is_refused() -> None:
    with pytest.raises(FingerprintMismatch, match="component recurrent"):
        require_equal(fingerprint(), fingerprint(state(dtype=DType.BFLOAT16)))


def test_a_component_that_only_one_side_has_is_named_as_absent() -> None:
    full_only = ModelState.of([StateTensor(0, "k", ComponentName.FULL, 4, (16,), DType.BFLOAT16)])
    with pytest.raises(FingerprintMismatch, match=r"component recurrent: .* theirs absent"):
        require_equal(fingerprint(), fingerprint(full_only))


def test_the_degree_of_tensor_parallelism_may_differ() -> None:
    one, two = fingerprint(), fingerprint(shard=Shard(1, 2))
    require_equal(one, two)
    assert one.hex == two.hex


def test_the_digest_of_a_config_ignores_key_order() -> None:
    assert config_digest({"a": 1, "b": [1, 2]}) == config_digest({"b": [1, 2], "a": 1})
    assert config_digest({"a": 1}) != config_digest({"a": 2})


def test_the_digest_is_the_same_in_another_process() -> None:
    code = "from tests.kv_transfer.test_fingerprint import fingerprint; print(fingerprint().hex)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert other.stdout.strip() == fingerprint().hex
