"""The recurrences on a CUDA device: launches the kernels of triton.py, which CUDA graphs may capture.

Needs Triton, which comes with torch's CUDA builds: nothing else of the package imports this module.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from segue.kernels.recurrence import triton as kernels
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, Ring
from segue.kernels.recurrence.rule import Rule


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a step is cut into programs: value columns and warps of each; and warps of those that make products."""

    columns: int
    warps: int
    product_warps: int = 2


# What was measured to be fast on an H200 (benchmarks/replay.py).
PLAIN = {
    Rule.GATED_DELTA: Tiling(64, 2),
    Rule.KIMI_DELTA: Tiling(64, 2),
    Rule.MAMBA2: Tiling(64, 2),
}
REPLAYED = {
    Rule.GATED_DELTA: Tiling(32, 1),
    Rule.KIMI_DELTA: Tiling(32, 1),
    Rule.MAMBA2: Tiling(32, 1),
}
# Products of blocks have no side shorter than this.
PRODUCT_SIDE_MIN = 16
# Keys of a matrix that a replaying program reads at once, and that any folds at once.
READ_KEYS = 8
FOLDED_KEYS = 16
FOLD_PRECISION = "ieee"


def decode(
    rule: Rule,
    inputs: RecurrentInputs,
    memory: RecurrentMemory,
    slots: Tensor,
    rings: Tensor,
    cursors: Tensor,
    flush: Tensor,
    cut: Tiling | None = None,
) -> Tensor:
    """One token a row: reads like inputs.value, matrix or ring moved on; cursors stay as they are.

    slots [rows]: 0 and below is padding, which reads zeros. rings [rows]: the ring row of each, 0 where there are no
    records and none is written; not looked at where all matrices are written. cursors [slots] int32: records of each
    slot. flush [rows] bool: rows that write their matrix in this step whatever their cursor.
    """
    length = memory.length
    log_decay, beta = inputs.log_decay.contiguous(), inputs.beta.contiguous()
    query, key, value, skip = inputs.query, inputs.key, inputs.value, inputs.skip
    rows, groups, heads, value_dim = value.shape
    key_dim = key.shape[2]
    assert query.stride(2) == 1, "the channels of a query lie apart"
    assert key.stride(2) == 1, "the channels of a key lie apart"
    assert value.stride()[2:] == (value_dim, 1), "the values of a group lie apart"
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    matrix = memory.matrix.whole
    cut = cut or (PLAIN if memory.ring is None else REPLAYED)[rule]
    columns = _columns(value_dim, cut)
    grid = (groups * heads * triton.cdiv(value_dim, columns), rows)
    inward = (*query.stride()[:2], *key.stride()[:2])
    traits = {"VECTOR_DECAY": rule.vector_decay, "CORRECTED": rule.corrected}
    sizes = {"GROUPS": groups, "HEADS": heads, "KEY_DIM": key_dim}
    blocks = {"BLOCK_K": triton.next_power_of_2(key_dim), "BLOCK_V": columns}
    if memory.ring is None:
        kernels.step_kernel[grid](
            query, key, value, log_decay, beta, skip, out, matrix, slots,
            *inward, *value.stride()[:2], *matrix.stride()[:2],
            **sizes, VALUE_DIM=value_dim, **traits, SKIP=skip is not None, **blocks, num_warps=cut.warps,
        )  # fmt: skip
        return out
    records, delta = _record_block(length), memory.ring
    products = torch.empty(rows, groups, heads if rule.vector_decay else 1, 2, records, device=value.device)
    flushed = flush.view(torch.uint8)
    beside = _starts_beside(value.device)
    kernels.products_kernel[(products.shape[1] * products.shape[2], rows)](
        query, key, log_decay, products, delta.keys, delta.log_decays, slots, rings, cursors, flushed,
        *inward, *delta.keys.stride()[:2], *delta.log_decays.stride()[:2],
        **sizes, LENGTH=length, RING=records, **traits, DEPENDENT=beside, BLOCK_K=blocks["BLOCK_K"],
        num_warps=cut.product_warps,
    )  # fmt: skip
    kernels.replay_kernel[grid](
        query, key, value, log_decay, beta, skip, products, out,
        matrix, delta.corrections, delta.keys, delta.log_decays, slots, rings, cursors, flushed,
        *inward, *value.stride()[:2], *_strides(matrix, delta),
        **sizes, VALUE_DIM=value_dim, LENGTH=length, RING=records, **traits, SKIP=skip is not None, **blocks,
        DEPENDENT=beside, READ_K=READ_KEYS, FOLD_K=_folded_keys(key_dim), PRECISION=FOLD_PRECISION, num_warps=cut.warps,
        **({"launch_pdl": True} if beside else {}),
    )  # fmt: skip
    return out


def materialize(rule: Rule, layers: Sequence[RecurrentMemory], slots: Tensor, rings: Tensor, cursors: Tensor) -> None:
    """Folds the rings of some slots, in all layers, into their matrices and sets their cursors to 0."""
    for memory in layers:
        if memory.ring is None:
            continue
        matrix, ring = memory.matrix.whole, memory.ring
        _, groups, heads, key_dim, value_dim = matrix.shape
        cut = REPLAYED[rule]
        columns = _columns(value_dim, cut)
        kernels.fold_kernel[(groups * heads * triton.cdiv(value_dim, columns), len(slots))](
            matrix, ring.corrections, ring.keys, ring.log_decays, slots, rings, cursors, *_strides(matrix, ring),
            HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, RING=_record_block(memory.length),
            VECTOR_DECAY=rule.vector_decay, BLOCK_V=columns, FOLD_K=_folded_keys(key_dim), PRECISION=FOLD_PRECISION,
            num_warps=cut.warps,
        )  # fmt: skip
    kernels.reset_kernel[(1,)](cursors, slots, len(slots), BLOCK=triton.next_power_of_2(len(slots)))


def advance(cursors: Tensor, slots: Tensor, flush: Tensor, length: int) -> None:
    """After all layers of a step: 0 for the slots of rows that wrote their matrix, one more for those of the others.

    Padding rows move nothing, and nothing moves while a graph is captured: the kernel only runs when it is replayed.
    """
    block = triton.next_power_of_2(len(slots))
    kernels.advance_kernel[(1,)](cursors, slots, flush.view(torch.uint8), len(slots), LENGTH=length, BLOCK=block)


@functools.cache
def _starts_beside(device: torch.device) -> bool:
    """Whether a kernel can start while the one before it runs (programmatic dependent launch): from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _strides(matrix: Tensor, ring: Ring) -> list[int]:
    """Of slots or ring rows, and of groups, in each tensor."""
    tensors = (matrix, ring.corrections, ring.keys, ring.log_decays)
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _columns(value_dim: int, cut: Tiling) -> int:
    """Value columns of a program."""
    return max(PRODUCT_SIDE_MIN, min(cut.columns, int(triton.next_power_of_2(value_dim))))


def _folded_keys(key_dim: int) -> int:
    """Keys that a program folds at once."""
    return max(PRODUCT_SIDE_MIN, min(FOLDED_KEYS, int(triton.next_power_of_2(key_dim))))


def _record_block(length: int) -> int:
    """Records that a program takes at once: all that a ring can hold."""
    return max(PRODUCT_SIDE_MIN, int(triton.next_power_of_2(length - 1)))
