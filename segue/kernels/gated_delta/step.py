"""One token a row of the gated delta rule, all rows and heads at once, on matrices kept in slots."""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.scratch import Scratch


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The slots of some rows, as what gathers them needs it; the same for all layers."""

    slots: tuple[int, ...]
    blocks: Tensor  # [rows * groups] int64: numbers of their (slot, group) blocks, group after group

    @staticmethod
    def of(slots: Tensor, groups: int) -> "SlotRows":
        blocks = slots.unsqueeze(1) * groups + torch.arange(groups, device=slots.device)
        return SlotRows(tuple(slots.tolist()), blocks.flatten())


def decode(inputs: DeltaInputs, memory: Tensor, rows: SlotRows, scratch: Scratch) -> Tensor:
    """One token a row; `memory` [slots, groups, heads, key dim, value dim] is read and moved on at the rows' slots.

    Both reads, for the correction and for the output, come from the state before the token:
    S_t^T q = a S_{t-1}^T q + (k . q) d.
    """
    query_key, value = inputs.query_key, inputs.value
    count, groups, heads, value_dim = value.shape
    key_dim = query_key.shape[-1]
    state = scratch.gather("matrix", memory.view(-1, heads * key_dim * value_dim), rows.blocks)
    probes = query_key.unsqueeze(2).expand(-1, -1, heads, -1, -1).reshape(-1, 2, key_dim)
    reads = torch.bmm(probes, state.view(-1, key_dim, value_dim)).view(count, groups, heads, 2, value_dim)
    decay = inputs.log_decay.exp()[..., None, None]
    query_read, key_read = reads.mul_(decay).unbind(3)
    correction = (value - key_read).mul_(inputs.beta.unsqueeze(-1))
    query, key = query_key.unbind(2)
    overlap = torch.linalg.vecdot(query, key)[..., None, None]
    out = query_read.addcmul(correction, overlap)
    _move_on([memory[slot] for slot in rows.slots], decay, key[:, :, None, :, None], correction.unsqueeze(-2))
    return out


def _move_on(states: list[Tensor], decay: Tensor, key: Tensor, correction: Tensor) -> None:
    """S = a S + k d^T in place, one row after another: a row fits a core's cache, where all rows together would not."""
    torch._foreach_mul_(states, decay.unbind(0))
    torch._foreach_addcmul_(states, key.unbind(0), correction.unbind(0))
