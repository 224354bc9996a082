"""Which rings the decode rows of a step read, and where each keeps what it is given."""

import numpy as np
import torch

from segue.batch.step import StepPlan
from segue.runner.context import ReplayRows
from segue.runner.upload import upload
from segue.state.recurrent import SlotStates
from segue.state.rings import Rings


class StepReplay:
    """The rings of one device, and the door that knows who is how far behind."""

    def __init__(self, slots: SlotStates, rings: Rings, device: torch.device) -> None:
        self._slots, self._rings, self._device = slots, rings, device

    def rows(self, plan: StepPlan) -> ReplayRows | None:
        """Those of a step that is launched next; None when nobody decodes in it. A checkpoint wants a whole state."""
        records = []
        for row in plan.rows:
            if not row.decode:
                break
            assert row.request.tables is not None
            assert row.request.tables.slot is not None
            record = self._slots.record(row.request.tables.slot, fold=row.checkpoint is not None)
            assert record is not None, "there are rings, but the door to the slots does not know"
            records.append(record)
        if not records:
            return None
        rows, cursors, folds = zip(*records, strict=True)
        parts = (np.array(rows), np.array(cursors, dtype=np.int32), np.array(folds))
        return ReplayRows(self._rings, *upload(parts, self._device))
