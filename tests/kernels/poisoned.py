"""State memory as kernels meet it: pages and slots in any order between strangers, everything unowned NaN."""

import torch
from torch import Tensor

from segue.kernels.memory import MemoryViews, StateMemory
from segue.models.options import BuildOptions
from segue.models.parts import AttentionShape
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.storage import Storage

UNITS = 40


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def paged_memory(heads: int, dim: int, page_tokens: int, kv_dtype: DType | None) -> MemoryViews:
    """Keys and values of two layers; of the second, neither blocks nor rows are contiguous."""
    shape = AttentionShape(hidden=heads * dim, query_heads=heads, kv_heads=heads, head_dim=dim, window=None)
    options = BuildOptions(kv_dtype=kv_dtype)
    tensors = [tensor for layer in (0, 1) for tensor in shape.state(layer, ComponentName.FULL, options)]
    return _poisoned(tensors, ComponentName.FULL, page_tokens)


def slot_memory(groups: int, shape: tuple[int, ...], beside: int) -> StateMemory:
    """One tensor per slot with `beside` elements of another tensor between its blocks."""
    tensors = [
        StateTensor(0, "state", ComponentName.RECURRENT, groups, shape, DType.FLOAT32),
        StateTensor(0, "beside", ComponentName.RECURRENT, groups, (beside,), DType.FLOAT32),
    ]
    return _poisoned(tensors, ComponentName.RECURRENT, 1).get(0, "state")


def _poisoned(tensors: list[StateTensor], component: ComponentName, page_tokens: int) -> MemoryViews:
    state = ModelState.of(tensors)
    storage = Storage(layouts(state, page_tokens, Shard()), {component: UNITS}, torch.device("cpu"))
    storage.arena.view(torch.float32).fill_(float("nan"))
    return MemoryViews(storage)
