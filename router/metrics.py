"""What the router counts, under the names that dashboards and autoscalers of this field already scrape."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.cache_metrics import CacheSeries
from router.replay_metrics import ReplaySeries
from router.retraction_metrics import RetractionSeries
from router.snapshot_metrics import SnapshotSeries
from router.transfer_metrics import TransferSummaries
from segue.errors import ServingError
from segue.wire import PoolStatus, Usage, WorkerStatus

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ITL_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_E2E_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# The share of a component's pool that requests hold, by the name its readers know.
_POOL_GAUGES = {
    "full": ("vllm:kv_cache_usage_perc", "Share of full-attention pages that requests hold"),
    "window": ("sglang:swa_token_usage", "Share of sliding-window pages that requests hold"),
    "recurrent": ("sglang:mamba_usage", "Share of recurrent slots that requests hold"),
}


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at one moment; `status` is None when it did not answer."""

    address: str
    model: str
    status: WorkerStatus | None


class Metrics:
    """All figures of one router, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        model = ["model_name"]
        self._running = self._gauge("vllm:num_requests_running", "Choices that workers hold for this router", [])
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests in this router's queue", [])
        self._up = self._gauge("segue:worker_up", "Whether the worker answers", ["worker"])
        self._worker_running = self._gauge("segue:worker_running", "Choices in the worker's batch", ["worker"])
        self._worker_waiting = self._gauge("segue:worker_waiting", "Choices in the worker's queue", ["worker"])
        self._ranks = self._gauge("segue:worker_ranks", "Tensor-parallel ranks of the worker", ["worker"])
        self._unpromised = self._gauge(
            "sglang:num_decode_prealloc_queue_reqs", "Choices that wait for room at their decode worker", ["worker"]
        )
        self._promised = self._gauge(
            "sglang:num_decode_transfer_queue_reqs", "Choices whose state is on its way", ["worker"]
        )
        self._transfers, self._caches = TransferSummaries(), CacheSeries()
        self._registry.register(self._transfers)
        self._retractions = RetractionSeries()
        self._registry.register(self._caches)
        self._registry.register(self._retractions)
        self._replays, self._snapshots = ReplaySeries(), SnapshotSeries()
        self._registry.register(self._replays)
        self._registry.register(self._snapshots)
        self._pools = {
            component: self._gauge(name, text, ["model_name", "worker"])
            for component, (name, text) in _POOL_GAUGES.items()
        }
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token", _TTFT_S)
        self._itl = self._histogram("vllm:inter_token_latency_seconds", "Time between output tokens", _ITL_S)
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end", _E2E_S)
        self._itl_of: dict[str, Callable[[float], None]] = {}
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens served", model)
        self._generated = self._counter("vllm:generation_tokens", "Output tokens served", model)
        self._queried = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in prefix caches", model)
        self._hit = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in prefix caches", model)
        self._succeeded = self._counter("vllm:request_success", "Choices served", [*model, "finished_reason"])
        self._failed = self._counter("segue:request_failures", "Requests that ended with an error", ["code"])
        self._continued = self._counter(
            "segue:continuations",
            "Choices continued after their worker was lost, parked ones included that were computed again",
            [],
        )

        self._switched = self._counter(
            "segue:switched_streams", "Choices that went on at another worker from their state", []
        )
        self._parked = self._counter(
            "segue:parked_streams", "Choices that left a worker for a snapshot while nobody else could go on", []
        )
        self._unparked = self._counter(
            "segue:unparked_streams", "Parked choices that a worker took on again from their snapshot", []
        )

    def first_token(self, model: str, seconds: float) -> None:
        self._ttft.labels(model).observe(seconds)

    def next_tokens(self, model: str, seconds: float, count: int) -> None:
        """`count` tokens came `seconds` after those before them."""
        observe = self._itl_of.get(model)
        if observe is None:
            # Looked up for every token of every stream: finding a labelled child costs more than observing.
            observe = self._itl_of[model] = self._itl.labels(model).observe
        for _ in range(count):
            observe(seconds / count)

    def choice_served(self, model: str, reason: str) -> None:
        self._succeeded.labels(model, reason).inc()

    def request_served(self, model: str, seconds: float, usage: Usage) -> None:
        self._e2e.labels(model).observe(seconds)
        self._prompt.labels(model).inc(usage.prompt_tokens)
        self._generated.labels(model).inc(usage.completion_tokens)
        self._queried.labels(model).inc(usage.prompt_tokens)
        self._hit.labels(model).inc(usage.cached_tokens)

    def request_failed(self, error: ServingError) -> None:
        self._failed.labels(error.kind.code).inc()

    def continued(self) -> None:
        self._continued.inc()

    def switched(self) -> None:
        self._switched.inc()

    def parked(self) -> None:
        self._parked.inc()

    def unparked(self) -> None:
        self._unparked.inc()

    def page(self, running: int, waiting: int, workers: Iterable[WorkerSample]) -> bytes:
        """The scrape page, with the gauges as they are now."""
        self._running.set(running)
        self._waiting.set(waiting)
        gauges = (self._up, self._worker_running, self._worker_waiting, self._ranks, self._unpromised, self._promised)
        for gauge in (*gauges, *self._pools.values()):
            gauge.clear()
        statuses: dict[str, WorkerStatus] = {}
        for sample in workers:
            status = sample.status
            self._up.labels(sample.address).set(status is not None and status.ready)
            if status is None:
                continue
            self._worker_running.labels(sample.address).set(status.running)
            self._worker_waiting.labels(sample.address).set(status.waiting)
            self._ranks.labels(sample.address).set(status.tp_size)
            self._unpromised.labels(sample.address).set(status.unpromised)
            self._promised.labels(sample.address).set(status.promised)
            statuses[sample.address] = status
            for pool in status.pools:
                if pool.component in self._pools:
                    self._pools[pool.component].labels(sample.model, sample.address).set(_held_share(pool))
        self._transfers.set({worker: status.transfers for worker, status in statuses.items()})
        self._caches.set(statuses)
        self._retractions.set({worker: status.retraction for worker, status in statuses.items()})
        self._snapshots.set({worker: status.snapshots for worker, status in statuses.items()})
        self._replays.set({worker: status.replay for worker, status in statuses.items()})
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)


def _held_share(pool: PoolStatus) -> float:
    """What requests hold or were promised, of all that can be held; the sink never can."""
    usable = pool.capacity - pool.sink
    return (pool.held + pool.reserved + pool.quarantined) / usable if usable > 0 else 0.0
