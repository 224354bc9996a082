"""What attention asks of one component's keys and values in a step; plain numbers and 8-bit codes answer it."""

from typing import Protocol

import torch
from torch import Tensor

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.plain import PlainKeyValues
from segue.kernels.attention.quantized import QuantizedKeyValues
from segue.kernels.rows import TokenPlaces


class DecodeBatch(Protocol):
    """Attention of rows with one query position each. What all layers share of it is worked out once."""

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """query [rows, query heads, dim] -> [rows, query heads * dim]."""


class KeyValues(Protocol):
    """The keys and values of one component's layers in a step."""

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Stores the step's keys and values [T, heads, dim]; from then on they are read as they are stored."""

    def batch(self, tokens: TokenPlaces) -> DecodeBatch:
        """One row for each of these tokens, whose keys are stored already."""

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [heads, tokens, dim] of (page, head) blocks, in buffers that the next layer takes."""


def stored_key_values(component: PagedComponent, tokens: TokenPlaces, layer: int) -> KeyValues:
    """Those of a step's `tokens`, in the form that the memory of `layer`, any of the component's, has."""
    if component.memory.storage.view(layer, "k").dtype is torch.float8_e4m3fn:
        return QuantizedKeyValues.of(component, tokens, layer)
    return PlainKeyValues.of(component, tokens, layer)
