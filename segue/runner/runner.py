"""Runs planned steps: plan to context, context to logits, logits to tokens. Decides nothing, owns no page."""

from segue.batch.step import StepOutput, StepPlan
from segue.runner.assembly import assemble_step
from segue.runner.context import Model
from segue.runner.sampler import Sampler
from segue.state.spec import ComponentName
from segue.state.storage import Storage


class Runner:
    """One model on one device with the storage that its state lives in."""

    def __init__(self, model: Model, storage: Storage, page_tokens: int, sampler: Sampler) -> None:
        self._model, self._storage, self._sampler = model, storage, sampler
        self._page_tokens = page_tokens

    def launch(self, plan: StepPlan) -> StepOutput:
        """Computes the plan's rows, writes their state, and samples: one output per sampling row, in row order."""
        step = assemble_step(plan, self._storage, self._page_tokens, self._model.state, self._model.device)
        logits = self._model.forward(step)
        for row in plan.rows:
            if row.checkpoint is not None:
                assert row.request.tables is not None
                assert row.request.tables.slot is not None
                self._storage.copy(ComponentName.RECURRENT, row.request.tables.slot, row.checkpoint)
        return self._sampler.sample(logits, [row.request for row in plan.rows if row.samples])
