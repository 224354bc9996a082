"""Every series of the scrape page is in the documents, and what workers say of themselves arrives there."""

import re

from prometheus_client.parser import text_string_to_metric_families

from router.metrics import Metrics
from segue.state.pool import PoolCounts
from segue.wire import CacheFigures, CacheHits, ChosenPrompts, ReplayFigures, RetractionFigures
from tests.repo.sources import ROOT
from tests.router.served import answer, served
from tests.support.fake_worker import FakeWorker

FIGURES = CacheFigures(
    looked_up_tokens=1000,
    hits=(CacheHits("recurrent", 600), CacheHits(None, 30)),
    checkpoints_taken=21,
    checkpoints_duplicate=22,
    checkpoints_skipped=23,
    checkpoints_evicted=24,
    checkpoints_resumed=25,
    floors_dropped=26,
    floor_tokens=128,
    floor_tokens_max=256,
    floor_tokens_decoding=6400,
    decode_rows=100,
    prompts=(ChosenPrompts("decode", "short", 27), ChosenPrompts("prefill", "long", 28)),
)

RETRACTION = RetractionFigures(
    by_memory=31,
    by_test=2,
    requests=20,
    restored=7,
    resumed=22,
    recomputed=9,
    mismatched=4,
    waiting=3,
    saved_bytes=5000,
    restored_bytes=4000,
    copy_s=0.5,
    away_s=60.0,
    recomputed_tokens=700,
    host=(PoolCounts("host_full", 10, 6, 3, sink=1),),
)


async def samples(worker: FakeWorker) -> dict[tuple[str, ...], float]:
    """What the page says of that worker, by name and the values of its other labels."""
    async with served(worker) as router:
        text = (await router.http.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("worker") == worker.address:
                others = (value for label, value in sorted(sample.labels.items()) if label != "worker")
                found[sample.name, *others] = sample.value
    return found


async def test_what_a_worker_says_of_its_cache_is_on_the_page() -> None:
    async with FakeWorker(answer) as worker:
        worker.cache = FIGURES
        seen = await samples(worker)
    assert seen["segue:cache_lookup_tokens_total",] == 1000
    hits = {key[1]: value for key, value in seen.items() if key[0] == "segue:cache_hit_tokens_total"}
    assert hits == {"recurrent": 600, "none": 30}
    events = {key[1]: value for key, value in seen.items() if key[0] == "segue:cache_checkpoints_total"}
    assert events == {"taken": 21, "duplicate": 22, "skipped": 23, "evicted": 24, "resumed": 25}
    assert seen["segue:cache_floors_dropped_total",] == 26
    assert seen["segue:cache_floor_tokens",] == 128
    assert seen["segue:cache_floor_tokens_max",] == 256
    assert seen["segue:cache_floor_tokens_decoding_sum",] == 6400
    assert seen["segue:cache_floor_tokens_decoding_count",] == 100
    assert seen["segue:cache_prompts_total", "decode", "short"] == 27
    assert seen["segue:cache_prompts_total", "prefill", "long"] == 28


async def test_what_a_worker_says_of_retraction_is_on_the_page() -> None:
    async with FakeWorker(answer) as worker:
        worker.retraction = RETRACTION
        seen = await samples(worker)
    assert {key[1]: value for key, value in seen.items() if key[0] == "segue:retractions_total"} == {
        "memory": 31,
        "test": 2,
    }
    assert seen["vllm:num_preemptions_total",] == 33
    assert seen["sglang:num_retracted_reqs",] == 3
    returns = {key[1]: value for key, value in seen.items() if key[0] == "segue:retraction_returns_total"}
    assert returns == {"resumed": 22, "recomputed": 9, "restored": 7}
    assert seen["segue:retraction_mismatches_total",] == 4
    assert seen["segue:retraction_bytes_total", "out"] == 5000
    assert seen["segue:retraction_bytes_total", "in"] == 4000
    assert seen["segue:retraction_seconds_total", "copies"] == 0.5
    assert seen["segue:retraction_seconds_total", "away"] == 60
    assert seen["segue:recomputed_tokens_total",] == 700
    assert seen["segue:host_units", "host_full", "free"] == 6
    assert seen["segue:host_units", "host_full", "held"] == 3


async def test_what_a_worker_says_of_replay_is_on_the_page() -> None:
    async with FakeWorker(answer) as worker:
        worker.replay = ReplayFigures(steps=90, folds_full=5, folds_checkpoint=4, folds_read=3, pending=2)
        seen = await samples(worker)
    assert seen["segue:replay_steps_total",] == 90
    folds = {key[1]: value for key, value in seen.items() if key[0] == "segue:replay_folds_total"}
    assert folds == {"full": 5, "checkpoint": 4, "read": 3}
    assert seen["segue:replay_pending_records",] == 2


async def test_how_many_ranks_a_worker_has_is_on_the_page() -> None:
    async with FakeWorker(answer) as worker:
        worker.tp_size = 4
        seen = await samples(worker)
    assert seen["segue:worker_ranks",] == 4


async def test_the_sets_of_a_pool_add_up_on_the_page() -> None:
    async with FakeWorker(answer) as worker:
        seen = await samples(worker)
    sets = {key[2]: value for key, value in seen.items() if key[0] == "segue:pool_units"}
    assert sets == {"free": 3, "held": 5, "cached": 2, "reserved": 0, "quarantined": 0, "sink": 1}
    assert sum(sets.values()) == 11


async def test_a_worker_that_is_gone_leaves_no_figures_behind() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        assert "segue:cache_lookup_tokens_total{" in (await router.http.get("/metrics")).text
        await worker.stop()
        await router.until_left()
        assert "segue:cache_lookup_tokens_total{" not in (await router.http.get("/metrics")).text


def test_the_documents_name_every_series_and_no_other() -> None:
    families = text_string_to_metric_families(Metrics().page(0, 0, ()).decode())
    shown = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    # When a counter began is told beside it.
    shown = {name for name in shown if not name.endswith("_created")}
    section = (ROOT / "docs/api.md").read_text().partition("\n## Metrics\n")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", section, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == shown
