"""What workers say of matrix states that they do not write in every step, as series that a scraper understands."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segue.wire import ReplayFigures


class ReplaySeries(Collector):
    """Shows the figures that were set last; every worker counts from its own start."""

    def __init__(self) -> None:
        self._by_worker: Mapping[str, ReplayFigures] = {}

    def set(self, by_worker: Mapping[str, ReplayFigures]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterable[Metric]:
        steps = CounterMetricFamily(
            "segue:replay_steps", "Decode steps of requests whose matrix states may be behind", labels=["worker"]
        )
        folds = CounterMetricFamily(
            "segue:replay_folds", "Rings folded into the matrix states, by cause", labels=["worker", "cause"]
        )
        pending = GaugeMetricFamily(
            "segue:replay_pending_records", "Records that no matrix state has yet", labels=["worker"]
        )
        for worker, figures in self._by_worker.items():
            steps.add_metric([worker], figures.steps)
            folds.add_metric([worker, "full"], figures.folds_full)
            folds.add_metric([worker, "checkpoint"], figures.folds_checkpoint)
            folds.add_metric([worker, "read"], figures.folds_read)
            pending.add_metric([worker], figures.pending)
        return steps, folds, pending
