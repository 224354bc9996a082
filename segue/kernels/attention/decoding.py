"""Which positions each decode row sees: the same for all layers of a component, however they store their keys."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segue.batch.step import IntArray
from segue.kernels.rows import TokenPlaces

SEEN, HIDDEN = np.float32(0), np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class SeenPositions:
    """What each row sees, padded to the longest row."""

    positions: IntArray  # [rows, tokens]
    hidden: NDArray[np.float32]  # [rows, tokens]: 0, or -inf where a row has fewer tokens

    @staticmethod
    def of(tokens: TokenPlaces, window: int | None) -> "SeenPositions":
        """One row per token. What a token's own row holds follows from its position alone, but for the padding."""
        newest = tokens.positions[:, None]
        oldest = np.zeros_like(newest) if window is None else np.maximum(newest - window, 0)
        seen = np.arange(int((newest - oldest).max()) + 1) + oldest
        # A shorter row repeats its newest token, hidden: what nobody wrote may be NaN, which no weight makes harmless.
        return SeenPositions(np.minimum(seen, newest), np.where(seen <= newest, SEEN, HIDDEN))

    def mask(self, heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`hidden` for every kv head: [rows * heads, 1, tokens]."""
        return torch.from_numpy(self.hidden.repeat(heads, 0)[:, None]).to(device, dtype)
