"""Keys and values stored in 8 bits: every vector is rounded when it is written, and only what is read is expanded.

To decode, no key is multiplied by its scale: a score is, and so is the weight of a value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.decoding import SeenPositions
from segue.kernels.attention.paging import write_rows
from segue.kernels.quantization.codes import code_unit, expand, quantize
from segue.kernels.rows import TokenPlaces


@dataclass(frozen=True, slots=True)
class QuantizedBatch:
    """Which codes and scales of the layers' memory each row of a decode batch sees."""

    component: PagedComponent
    code_rows: Tensor  # [rows * heads * tokens] int64
    scale_rows: Tensor  # [rows * heads * tokens] int64
    hidden: Tensor  # [rows * heads, 1, tokens] fp32: 0, or -inf where a row has fewer tokens

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        blocks = self.hidden.shape[0]
        # Sums over codes may be too large for fp16.
        dtype = torch.float32 if query.dtype is torch.float16 else query.dtype
        unit = code_unit(query.device)
        # Query heads that share a kv head stand where a sequence of queries would.
        probes = query.to(dtype).reshape(blocks, -1, query.shape[2]) * (scale * unit)
        key, key_scales = self._read(layer, "k", dtype)
        scores = torch.bmm(probes, key.transpose(1, 2)).float().mul_(key_scales).add_(self.hidden)
        weights = torch.softmax(scores, -1)
        # In the keys' buffers, which have done their part.
        value, value_scales = self._read(layer, "v", dtype)
        out = torch.bmm(weights.mul_(value_scales).to(dtype), value).mul_(unit)
        return out.to(query.dtype).view(query.shape[0], -1)

    def _read(self, layer: int, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Codes as numbers [rows * heads, tokens, dim] and their scales [rows * heads, 1, tokens]."""
        memory, scratch = self.component.memory, self.component.scratch
        stored, scales = memory.get(layer, name).vectors, memory.get(layer, f"{name}_scale").vectors
        blocks, _, tokens = self.hidden.shape
        codes = scratch.gather("codes", stored, self.code_rows, (blocks, tokens, stored.shape[1]))
        numbers = expand("numbers", codes, dtype, scratch)
        return numbers, scratch.gather("scales", scales, self.scale_rows, (blocks, 1, tokens))


@dataclass(frozen=True, slots=True)
class QuantizedKeyValues:
    """One component's keys and values in a step, as codes and scales. A block is what one page holds for one head."""

    component: PagedComponent
    code_rows: int
    """Rows of codes from one block to the next; so for scales."""
    scale_rows: int
    written_codes: Tensor
    written_scales: Tensor

    @staticmethod
    def of(component: PagedComponent, tokens: TokenPlaces, layer: int) -> "QuantizedKeyValues":
        """`tokens` are those of the step; `layer` is any of the component's."""
        codes, scales = (component.memory.get(layer, name).block_rows for name in ("k", "k_scale"))
        return QuantizedKeyValues(
            component,
            codes,
            scales,
            write_rows(component.table, tokens, component.heads, codes),
            write_rows(component.table, tokens, component.heads, scales),
        )

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        codes, scales = quantize(torch.stack((key, value)).flatten(1, 2))
        memory = self.component.memory
        for name, code, scale in zip(("k", "v"), codes, scales, strict=True):
            memory.get(layer, name).vectors.index_copy_(0, self.written_codes, code)
            memory.get(layer, f"{name}_scale").vectors.index_copy_(0, self.written_scales, scale)

    def batch(self, tokens: TokenPlaces) -> QuantizedBatch:
        heads, table = self.component.heads, self.component.table
        seen = SeenPositions.of(tokens, self.component.window)
        return QuantizedBatch(
            self.component,
            table.tensor(table.token_rows(tokens.rows, seen.positions, heads, self.code_rows)),
            table.tensor(table.token_rows(tokens.rows, seen.positions, heads, self.scale_rows)),
            seen.mask(heads, torch.float32, table.device),
        )

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        return self._gather(layer, "k", blocks, "keys"), self._gather(layer, "v", blocks, "values")

    def _gather(self, layer: int, name: str, blocks: Tensor, use: str) -> Tensor:
        heads, scratch = self.component.heads, self.component.scratch
        stored, scales = (self.component.memory.get(layer, part) for part in (name, f"{name}_scale"))
        tokens = blocks.shape[0] // heads * self.component.table.page_tokens
        codes = scratch.gather("codes", stored.blocks, blocks, (heads, tokens, stored.whole.shape[-1]))
        factors = scratch.gather("scales", scales.blocks, blocks, (heads, tokens, 1)).mul_(code_unit(codes.device))
        return expand(use, codes, self.component.dtype, scratch).mul_(factors)
