"""What workers say of the states that reached or left them, as a scraper understands it; measures nothing."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from segue.wire import Transfers


class TransferSummaries(Collector):
    """Shows the figures that were set last; every worker counts from its own start."""

    def __init__(self) -> None:
        self._by_worker: dict[str, Transfers] = {}

    def set(self, by_worker: dict[str, Transfers]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterable[Metric]:
        latency = SummaryMetricFamily(
            "sglang:kv_transfer_latency_ms", "From the promise of room to the complete state", labels=["worker"]
        )
        speed = SummaryMetricFamily("sglang:kv_transfer_speed_gb_s", "What each handoff reached", labels=["worker"])
        moved = CounterMetricFamily(
            "segue:requests_moved", "Running requests that left a worker for another", labels=["worker", "way"]
        )
        for worker, transfers in self._by_worker.items():
            latency.add_metric([worker], transfers.count, transfers.latency_s * 1e3)
            speed.add_metric([worker], transfers.count, transfers.speed_gb_s)
            for way in ("in", "out", "lost"):
                moved.add_metric([worker, way], getattr(transfers, f"moved_{way}"))
        return latency, speed, moved
