"""The weights digest: equal for the same model however it is cut into files, different for any change."""

from pathlib import Path

import torch

from segue.weights.digest import weights_digest
from segue.weights.folder import ModelFolder
from tests.weights.folders import EMBEDDING, NORM, small_tensors, write_sharded, write_single


def digest_of(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    return weights_digest(ModelFolder.open(write_single(folder, tensors)).files)


def test_sharding_and_nesting_do_not_change_the_digest(tmp_path: Path) -> None:
    plain = digest_of(tmp_path / "plain", small_tensors())
    sharded = ModelFolder.open(write_sharded(tmp_path / "sharded", small_tensors()))
    nested = {name.replace("model.", "model.language_model.", 1): t for name, t in small_tensors().items()}
    assert weights_digest(sharded.files) == plain
    assert digest_of(tmp_path / "nested", nested) == plain


def test_a_change_of_value_name_shape_or_dtype_changes_the_digest(tmp_path: Path) -> None:
    tensors = small_tensors()
    flipped = tensors[NORM].clone()
    flipped.view(torch.int32)[2] ^= 1
    swapped = tensors | {NORM: tensors[NORM], "other": torch.zeros(4)}
    variants = {
        "same": tensors,
        "one bit": tensors | {NORM: flipped},
        "shape": tensors | {EMBEDDING: tensors[EMBEDDING].reshape(4, 8)},
        "dtype": tensors | {EMBEDDING: tensors[EMBEDDING].view(torch.float16)},
        "one more": swapped,
        "contents exchanged": swapped | {NORM: torch.zeros(4), "other": tensors[NORM]},
    }
    digests = {name: digest_of(tmp_path / name, variant) for name, variant in variants.items()}
    assert len(set(digests.values())) == len(variants), digests
