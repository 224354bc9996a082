"""A real engine over a scripted runner: scheduling, pools and news are the product's, only the model is missing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_transfer.hosting.loading import Identity, Loaded
from segue.batch.admission import Admission
from segue.batch.holdings import Holdings
from segue.batch.limits import SchedulerLimits
from segue.batch.sampling import SamplingDefaults
from segue.batch.scheduler import Scheduler
from segue.batch.scores import Scores, Top
from segue.batch.step import StepOutput, StepPlan, StepRow
from segue.engine import Engine
from segue.engine_facts import EngineFacts
from segue.ids import Slot
from segue.state.layout import Shard, layouts
from segue.state.pool import Pool
from segue.state.replay_figures import ReplayFigures
from segue.state.spec import ComponentName, DType, ModelState, StateTensor

VOCAB = 1000
EOS = 1
PAGE = 4
STATE = ModelState.of(
    [
        StateTensor(0, "k", ComponentName.FULL, 1, (4,), DType.FLOAT32),
        StateTensor(1, "matrix", ComponentName.RECURRENT, 1, (4, 4), DType.FLOAT32),
    ]
)


class Slots:
    """A slot door that nobody stands behind."""

    def start(self, slot: Slot) -> None: ...

    def resume(self, checkpoint: Slot, slot: Slot) -> None: ...

    def receive(self, slot: Slot, depth: int) -> None: ...

    def release(self, slot: Slot) -> None: ...

    def advance(self, slot: Slot, depth: int) -> None: ...

    def check(self) -> None:
        pass

    def figures(self) -> ReplayFigures:
        return ReplayFigures()

    def whole(self, slot: Slot) -> None: ...


def expected(prompt: Sequence[int], index: int) -> int:
    """The token that the scripted model emits at an output index: it depends on prompt and position alone."""
    return 10 + (sum(prompt) * 7 + index * 3) % (VOCAB - 10)


@dataclass
class ScriptedRunner:
    """`before` runs on the engine thread ahead of every step: it may wait for a test, or raise."""

    before: Callable[[], None] = lambda: None
    steps: int = field(default=0)

    def launch(self, plan: StepPlan) -> StepOutput:
        self.before()
        self.steps += 1
        rows = [row.request for row in plan.rows if row.samples]
        tokens = [expected(request.prompt, len(request.output)) for request in rows]
        logprobs = np.full(len(tokens), -0.5, dtype=np.float32)
        scores = tuple(_scores(row) for row in plan.scored_rows)
        return StepOutput(np.asarray(tokens, dtype=np.int64), logprobs, None, scores)


def expected_score(prompt: Sequence[int], position: int) -> tuple[float, Top]:
    """What the scripted model makes of a prompt token: a multiple of 1/8, exact in every float."""
    logprob = -(prompt[position] % 32) - position / 8
    return logprob, ((prompt[position], logprob), (7, -position / 8))


def _scores(row: StepRow) -> Scores:
    found = [expected_score(row.request.prompt, position + 1) for position in row.scored]
    return Scores(row.scored.start + 1, [logprob for logprob, _ in found], [top for _, top in found])


def scripted(runner: ScriptedRunner, *, max_running: int = 8, max_waiting: int = 64) -> Loaded:
    """An engine with room for `max_running` requests of 256 tokens."""
    usable = {ComponentName.FULL: 64 * max_running, ComponentName.RECURRENT: max_running}
    pools = {name: Pool(name, count + 1) for name, count in usable.items()}
    slots = Slots()
    holdings = Holdings(pools, slots, page_tokens=PAGE, window=None)
    admission = Admission(usable, page_tokens=PAGE, window=None, chunk_tokens=32, max_len=256)
    limits = SchedulerLimits(
        max_running=max_running, max_waiting=max_waiting, step_tokens=64, chunk_tokens=32, page_tokens=PAGE
    )
    facts = EngineFacts(
        name="scripted",
        vocab_size=VOCAB,
        max_len=256,
        eos_token_ids=(EOS,),
        defaults=SamplingDefaults(),
        page_tokens=PAGE,
        dtype="float32",
        deterministic=True,
        window=None,
        layouts=layouts(STATE, PAGE, Shard()),
    )
    engine = Engine(facts, Scheduler(limits, admission, holdings), holdings, slots, runner)
    return Loaded(engine, Identity(facts, "f" * 32))
