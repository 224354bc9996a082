"""What workers say of the snapshots that they wrote, as series that a scraper understands."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from segue.wire import SnapshotFigures


class SnapshotSeries(Collector):
    """Shows the figures that were set last; every worker counts from its own start."""

    def __init__(self) -> None:
        self._by_worker: Mapping[str, SnapshotFigures] = {}

    def set(self, by_worker: Mapping[str, SnapshotFigures]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterable[Metric]:
        written = CounterMetricFamily(
            "segue:snapshots",
            "Snapshots of running requests: exported (the request left), copied (it ran on), or failed",
            labels=["worker", "kind"],
        )
        size = CounterMetricFamily("segue:snapshot_bytes", "Bytes of snapshots written", labels=["worker"])
        for worker, figures in self._by_worker.items():
            written.add_metric([worker, "exported"], figures.exported)
            written.add_metric([worker, "copied"], figures.copied)
            written.add_metric([worker, "failed"], figures.failed)
            size.add_metric([worker], figures.bytes)
        return written, size
