"""What a decode step costs the engine thread beside the model: plan, commit, and the tree's part; no tensors."""

import gc
import random
import time

from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from benchmarks.scripted import scripted_engine, scripted_spec
from segue.batch.lifecycle import Phase
from segue.cache.shape import CacheShape
from segue.engine import Engine
from segue.ids import Handle
from segue.state.needs import SLOTS_EACH, page_count, retained_pages_max, window_pages_max
from segue.state.spec import ComponentName

# Prompts of lengths one apart: in every step some requests begin a page, and some are due a checkpoint.
PROMPT_TOKENS = 1_024


def decode_step(shape: CacheShape, *, running: int, steps: int, vocabulary: int) -> dict[str, object]:
    """Medians over so many steps: of all, and of its two halves; with the whole engine's work for every token."""
    engine = _decoding(shape, running, steps, vocabulary)
    launches, commits = [], []
    gc.collect()
    for _ in range(steps):
        started_s = time.perf_counter()
        record = engine.launch()
        launched_s = time.perf_counter()
        if record is None or len(record.plan.rows) != running:
            raise Refused(f"not all of {running} requests decode")
        engine.commit(record)
        launches.append(launched_s - started_s)
        commits.append(time.perf_counter() - launched_s)
    engine.check()
    taken = engine.status().cache.checkpoints_taken
    if taken < running * (steps // shape.interval):
        raise Refused(f"{taken} checkpoints were left")
    return {
        "decode_step_ms": milliseconds([one + other for one, other in zip(launches, commits, strict=True)], 0.5),
        "decode_plan_ms": milliseconds(launches, 0.5),
        "decode_commit_ms": milliseconds(commits, 0.5),
    }


def _decoding(shape: CacheShape, running: int, steps: int, vocabulary: int) -> Engine:
    """An engine all of whose requests decode, with room for what STATE.md says that each may hold."""
    assert shape.window is not None
    output = steps + 2 * running
    longest = PROMPT_TOKENS + running + output
    window_pages = window_pages_max(shape.window, PROMPT_TOKENS, shape.page_tokens)
    window_pages += retained_pages_max(shape.window, shape.page_tokens)
    each = {
        ComponentName.FULL: page_count(longest, shape.page_tokens),
        ComponentName.WINDOW: window_pages,
        ComponentName.RECURRENT: SLOTS_EACH,
    }
    engine = scripted_engine(
        shape, running=running, max_len=longest, units={name: running * count for name, count in each.items()}
    )
    draw = random.Random(0)
    for index in range(running):
        prompt = draw.choices(range(vocabulary), k=PROMPT_TOKENS + index)
        engine.submit(scripted_spec(f"r{index}", prompt, output), Handle(index + 1))
    while any(request.phase is not Phase.DECODING for request in engine.live_requests()):
        record = engine.launch()
        assert record is not None
        engine.commit(record)
    return engine
