"""Causal depthwise convolution as a sum of shifted products, on state kept in slots.

Every output is the same chain of multiply-adds whether its token was decoded or extended, alone or among others: the
result of a token does not depend on the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from segue.kernels.rows import extended_rows
from segue.runner.context import StepContext


def convolve(step: StepContext, memory: Tensor, columns: Tensor, taps: Sequence[Tensor]) -> Tensor:
    """All rows of a step: columns [T, groups, channels], `memory` the layer's slots as in `decode`."""
    rows = step.decode_rows
    if rows == step.row_count:
        return decode(columns, taps, memory, step.slots)
    parts = [decode(columns[:rows], taps, memory, step.slots[:rows])] if rows else []
    parts += [extend(columns[span], taps, memory[step.slots[row]]) for row, span in extended_rows(step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def decode(columns: Tensor, taps: Sequence[Tensor], memory: Tensor, slots: Tensor) -> Tensor:
    """One token a row: columns [rows, groups, channels], taps [groups, channels] each, oldest first.

    `memory` [slots, groups, width - 1, channels] is read and moved on by one token at `slots` [rows].
    """
    past = memory.index_select(0, slots)
    memory[:, :, :-1].index_copy_(0, slots, past[:, :, 1:])
    memory[:, :, -1].index_copy_(0, slots, columns)
    oldest, *later = past.unbind(2)
    out = oldest * taps[0]
    for column, tap in zip((*later, columns), taps[1:], strict=True):
        out.addcmul_(column, tap)
    return out


def extend(columns: Tensor, taps: Sequence[Tensor], memory: Tensor) -> Tensor:
    """Tokens of one row: columns [tokens, groups, channels]; `memory` [groups, width - 1, channels] is the row's
    slot.
    """
    count, width = columns.shape[0], len(taps)
    history = torch.cat([memory.transpose(0, 1), columns])
    out = history[:count] * taps[0]
    for tap in range(1, width):
        out.addcmul_(history[tap : tap + count], taps[tap])
    memory.copy_(history[count:].transpose(0, 1))
    return out
