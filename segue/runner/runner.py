"""Runs planned steps: plan to context, context to logits, logits to tokens. Decides nothing, owns no page."""

from dataclasses import replace

from segue.batch.failure import SamplingFailed
from segue.batch.request import Request
from segue.batch.step import StepOutput, StepPlan
from segue.runner.assembly import assemble_step
from segue.runner.context import Model
from segue.runner.replay import StepReplay
from segue.runner.sampler import Sampler
from segue.runner.scoring import score
from segue.state.coverage import Coverage
from segue.state.spec import ComponentName
from segue.state.storage import Storage

COVERAGE = Coverage("the runner", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


class Runner:
    """One model on one device with the storage that its state lives in."""

    def __init__(
        self, model: Model, storage: Storage, page_tokens: int, sampler: Sampler, replay: StepReplay | None = None
    ) -> None:
        """With `replay` decode rows write their matrix states only when their rings are full or a checkpoint is due."""
        COVERAGE.require(spec.name for spec in model.state.components)
        self._model, self._storage, self._sampler = model, storage, sampler
        self._page_tokens, self._replay = page_tokens, replay

    def launch(self, plan: StepPlan) -> StepOutput:
        """Computes the plan's rows, writes their state, samples, and scores what is to be scored.

        Raises SamplingFailed, after all of it was done, when the logits of some rows are none.
        """
        step = assemble_step(plan, self._storage, self._page_tokens, self._model.state, self._model.device)
        if self._replay is not None:
            step = replace(step, replay=self._replay.rows(plan))
        logits = self._model.forward(step)
        for row in plan.rows:
            if row.checkpoint is not None:
                assert row.request.tables is not None
                assert row.request.tables.slot is not None
                self._storage.copy(ComponentName.RECURRENT, row.request.tables.slot, row.checkpoint)
        sampling = [row.request for row in plan.rows if row.samples]
        failed: tuple[Request, ...] = ()
        try:
            output = self._sampler.sample(logits[: len(sampling)], sampling)
        except SamplingFailed as failure:
            output, failed = failure.output, failure.failed
        if scored := plan.scored_rows:
            scores, unsound = score(logits[len(sampling) :], scored)
            output = replace(output, scores=scores)
            failed = (*failed, *(request for request in unsound if request not in failed))
        if failed:
            raise SamplingFailed(failed, output)
        return output
