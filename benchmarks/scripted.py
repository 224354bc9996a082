"""An engine without tensors: scheduler, admission, holdings and prefix tree are real, the runner computes nothing."""

from collections.abc import Sequence

import numpy as np

from segue.batch.admission import Admission
from segue.batch.holdings import Holdings
from segue.batch.limits import SchedulerLimits
from segue.batch.reuse import Reuse
from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.batch.scheduler import Scheduler
from segue.batch.step import StepOutput, StepPlan
from segue.batch.submission import GenerateSpec
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.engine import Engine
from segue.engine_facts import EngineFacts
from segue.ids import RequestId, RouterId, Slot
from segue.state.pool import Pool
from segue.state.replay_figures import ReplayFigures
from segue.state.spec import ComponentName


class NoSlots:
    """A slot door behind which there is no memory."""

    def start(self, slot: Slot) -> None:
        pass

    def resume(self, checkpoint: Slot, slot: Slot) -> None:
        pass

    def receive(self, slot: Slot, depth: int) -> None:
        pass

    def advance(self, slot: Slot, depth: int) -> None:
        pass

    def check(self) -> None:
        pass

    def figures(self) -> ReplayFigures:
        return ReplayFigures()

    def whole(self, slot: Slot) -> None:
        pass

    def release(self, slot: Slot) -> None:
        pass


class NoModel:
    """Samples the same token for everybody."""

    def launch(self, plan: StepPlan) -> StepOutput:
        sampled = sum(row.samples for row in plan.rows)
        return StepOutput(np.full(sampled, 7, dtype=np.int64), np.zeros(sampled, dtype=np.float32), None)


def scripted_engine(shape: CacheShape, *, running: int, max_len: int, units: dict[ComponentName, int]) -> Engine:
    """An engine of `shape` for `running` requests at once, with so many units in its pools."""
    pools = {name: Pool(name, count + 1) for name, count in units.items()}
    slots = NoSlots()
    reuse = Reuse(PrefixTree(shape, pools, slots.release))
    holdings = Holdings(pools, slots, page_tokens=shape.page_tokens, window=shape.window, reuse=reuse)
    limits = SchedulerLimits(
        max_running=running,
        max_waiting=running,
        step_tokens=16 * 1024,
        chunk_tokens=2 * 1024,
        page_tokens=shape.page_tokens,
    )
    admission = Admission(
        {name: pool.usable_count for name, pool in pools.items()},
        page_tokens=shape.page_tokens,
        window=shape.window,
        chunk_tokens=limits.chunk_tokens,
        max_len=max_len,
        cached=shape,
    )
    facts = EngineFacts(
        name="scripted",
        vocab_size=1 << 20,
        max_len=max_len,
        eos_token_ids=(),
        defaults=SamplingDefaults(),
        page_tokens=shape.page_tokens,
        dtype="float32",
        deterministic=False,
        window=shape.window,
        layouts=(),
    )
    return Engine(facts, Scheduler(limits, admission, holdings), holdings, slots, NoModel())


def scripted_spec(name: str, prompt: Sequence[int], output: int) -> GenerateSpec:
    """A greedy request that runs to its budget."""
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=output, ignore_eos=True)
    return GenerateSpec(
        router_id=RouterId("benchmark"),
        request_id=RequestId(name),
        attempt=1,
        prompt=tuple(prompt),
        sampling=sampling,
    )
