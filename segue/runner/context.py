"""What a model's forward sees of one step: tokens, where each row's state lies, and the storage.

The one argument it gets.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from segue.state.rings import Rings
from segue.state.spec import ModelState
from segue.state.storage import Storage


@dataclass(frozen=True, slots=True)
class ReplayRows:
    """Where the decode rows of a step keep their records; see `segue.state.recurrent.Record`."""

    rings: Rings
    rows: torch.Tensor  # [decode rows] int64: ring rows
    cursors: torch.Tensor  # [decode rows] int32: records that the matrix state does not have yet
    folds: torch.Tensor  # [decode rows] bool: the step leaves a whole state


@dataclass(frozen=True, slots=True)
class StepContext:
    """One step's batch. Rows are requests; their tokens are concatenated: T tokens over R rows.

    Rows [0, decode_rows) have exactly one token each and come first. `row_starts[r] .. row_starts[r + 1]` are row r's
    tokens; `depths[r]` tokens of row r are complete in storage before this step (0: the slot is zeroed and no page is
    read). Page tables are padded with the sink (page 0). Column j of `full_pages` holds positions [j * P, (j + 1) *
    P); column j of `window_pages` holds the page of index `window_first[r] + j`. Tables of a component that the model
    does not have are empty.
    """

    storage: Storage
    page_tokens: int
    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, absolute
    row_starts: tuple[int, ...]  # R + 1
    depths: tuple[int, ...]  # R
    decode_rows: int
    full_pages: torch.Tensor  # [R, pages] int64
    window_pages: torch.Tensor  # [R, pages] int64
    window_first: tuple[int, ...]  # R
    slots: torch.Tensor  # [R] int64
    logit_rows: torch.Tensor  # [S] int64, token indices in [0, T) whose logits are wanted, in any order
    replay: ReplayRows | None = None  # None: decode rows write their matrix states in every step

    @property
    def row_count(self) -> int:
        return len(self.depths)


class Model(Protocol):
    """A model family's forward."""

    @property
    def state(self) -> ModelState:
        """All state the model keeps."""

    @property
    def device(self) -> torch.device:
        """Where weights and state live."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int:
        """The longest sequence the checkpoint was made for, in tokens."""

    def forward(self, step: StepContext) -> torch.Tensor:
        """Computes the step, writes every state component of every row, and returns logits [S, vocab] fp32."""
