"""What workers say of their pools and prefix caches, as series that a scraper understands; measures nothing."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from segue.wire import CacheFigures, PoolStatus, WorkerStatus


class CacheSeries(Collector):
    """Shows the figures that were set last; every worker counts from its own start."""

    def __init__(self) -> None:
        self._by_worker: Mapping[str, WorkerStatus] = {}

    def set(self, by_worker: Mapping[str, WorkerStatus]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterable[Metric]:
        caches = {worker: status.cache for worker, status in self._by_worker.items()}
        return self._units(), *_tokens(caches), _checkpoints(caches), *_floors(caches), _prompts(caches)

    def _units(self) -> Metric:
        family = GaugeMetricFamily(
            "segue:pool_units",
            "Pages or slots of a component by who has them; the sets of a pool are disjoint and complete",
            labels=["worker", "component", "set"],
        )
        for worker, status in self._by_worker.items():
            for pool in status.pools:
                for name, count in _sets(pool).items():
                    family.add_metric([worker, pool.component, name], count)
        return family


def _tokens(caches: Mapping[str, CacheFigures]) -> tuple[Metric, Metric]:
    lookups = CounterMetricFamily(
        "segue:cache_lookup_tokens", "Known tokens of requests that started at the worker", labels=["worker"]
    )
    hits = CounterMetricFamily(
        "segue:cache_hit_tokens",
        "Those of them that were not computed again, by the component that limited the match",
        labels=["worker", "limited_by"],
    )
    for worker, cache in caches.items():
        lookups.add_metric([worker], cache.looked_up_tokens)
        # Also before the first hit: what a dashboard asks for is there.
        tokens = {"none": 0} | {each.limited_by or "none": each.tokens for each in cache.hits}
        for limited_by, count in tokens.items():
            hits.add_metric([worker, limited_by], count)
    return lookups, hits


def _checkpoints(caches: Mapping[str, CacheFigures]) -> Metric:
    family = CounterMetricFamily(
        "segue:cache_checkpoints", "Checkpoints of recurrent state, by what happened", labels=["worker", "event"]
    )
    for worker, cache in caches.items():
        events = {
            "taken": cache.checkpoints_taken,
            "duplicate": cache.checkpoints_duplicate,
            "skipped": cache.checkpoints_skipped,
            "evicted": cache.checkpoints_evicted,
            "resumed": cache.checkpoints_resumed,
        }
        for event, count in events.items():
            family.add_metric([worker, event], count)
    return family


def _floors(caches: Mapping[str, CacheFigures]) -> tuple[Metric, Metric, Metric, Metric]:
    dropped = CounterMetricFamily(
        "segue:cache_floors_dropped", "Retention floors given up because memory was short", labels=["worker"]
    )
    now = GaugeMetricFamily(
        "segue:cache_floor_tokens",
        "Window positions that running requests keep for the floor's sake",
        labels=["worker"],
    )
    most = GaugeMetricFamily(
        "segue:cache_floor_tokens_max", "The most of those that any one request had so far", labels=["worker"]
    )
    decoding = SummaryMetricFamily(
        "segue:cache_floor_tokens_decoding",
        "What a request had of those at each of its decode steps",
        labels=["worker"],
    )
    for worker, cache in caches.items():
        dropped.add_metric([worker], cache.floors_dropped)
        now.add_metric([worker], cache.floor_tokens)
        most.add_metric([worker], cache.floor_tokens_max)
        decoding.add_metric([worker], cache.decode_rows, cache.floor_tokens_decoding)
    return dropped, now, most, decoding


def _prompts(caches: Mapping[str, CacheFigures]) -> Metric:
    family = CounterMetricFamily(
        "segue:cache_prompts",
        "Prompts that a prefill worker was named for, by the role that computed what was not cached, and why",
        labels=["worker", "computed_by", "reason"],
    )
    for worker, cache in caches.items():
        for prompts in cache.prompts:
            family.add_metric([worker, prompts.computed_by, prompts.reason], prompts.count)
    return family


def _sets(pool: PoolStatus) -> dict[str, int]:
    return {
        "free": pool.free,
        "held": pool.held,
        "cached": pool.cached,
        "reserved": pool.reserved,
        "quarantined": pool.quarantined,
        "sink": pool.sink,
    }
