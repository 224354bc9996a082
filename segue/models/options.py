"""How a model is to be built, whatever its family."""

from dataclasses import dataclass

import torch

from segue.errors import ConfigError
from segue.kernels.batched import BatchedKernels
from segue.kernels.interface import Kernels
from segue.kernels.tiled import TiledKernels
from segue.layers.ranks import ALONE, Ranks
from segue.state.layout import Shard
from segue.state.spec import COMPUTE_DTYPES, KV_DTYPES, DType
from segue.state.storage import TORCH_DTYPE

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """`dtype` is that of weights and activations, and of stored keys and values unless `kv_dtype` names another;
    `deterministic` trades speed for results that do not depend on the batch.
    """

    dtype: DType = DType.FLOAT32
    kv_dtype: DType | None = None
    deterministic: bool = False
    device: torch.device = CPU
    ranks: Ranks = ALONE
    """Whoever computes the model together with this process; its rank's part of the weights is what is built."""

    def __post_init__(self) -> None:
        assert self.dtype in COMPUTE_DTYPES, self.dtype
        assert self.kv_dtype is None or self.kv_dtype in KV_DTYPES.values(), self.kv_dtype

    @property
    def shard(self) -> Shard:
        return self.ranks.shard

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPE[self.dtype]

    def kernels(self) -> Kernels:
        """The kernels that these options ask for. Raises ConfigError when the device has none."""
        if not self.deterministic:
            return BatchedKernels(self.torch_dtype, self.device)
        if self.device.type != "cpu" or self.dtype is not DType.FLOAT32:
            raise ConfigError(f"deterministic mode needs float32 on the CPU, not {self.dtype} on {self.device}")
        return TiledKernels()
