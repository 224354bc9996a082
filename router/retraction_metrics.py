"""What workers say of requests that they took off their devices, as series that a scraper understands."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segue.wire import RetractionFigures


class RetractionSeries(Collector):
    """Shows the figures that were set last; every worker counts from its own start."""

    def __init__(self) -> None:
        self._by_worker: Mapping[str, RetractionFigures] = {}

    def set(self, by_worker: Mapping[str, RetractionFigures]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterable[Metric]:
        total = CounterMetricFamily("vllm:num_preemptions", "Requests taken off the device", labels=["worker"])
        causes = CounterMetricFamily(
            "segue:retractions", "Requests taken off the device, by cause", labels=["worker", "cause"]
        )
        returns = CounterMetricFamily(
            "segue:retraction_returns",
            "Requests that came back: resumed from a backup, recomputed because there was none or it had changed, or "
            "restored from a snapshot",
            labels=["worker", "how"],
        )
        mismatches = CounterMetricFamily(
            "segue:retraction_mismatches", "Backups that came back changed", labels=["worker"]
        )
        waiting = GaugeMetricFamily("sglang:num_retracted_reqs", "Requests off the device", labels=["worker"])
        copied = CounterMetricFamily(
            "segue:retraction_bytes", "State copied to host memory and back", labels=["worker", "direction"]
        )
        seconds = CounterMetricFamily(
            "segue:retraction_seconds",
            "Time of all copies, and of all requests off the device",
            labels=["worker", "of"],
        )
        again = CounterMetricFamily(
            "segue:recomputed_tokens", "Positions computed that had been computed before", labels=["worker"]
        )
        host = GaugeMetricFamily(
            "segue:host_units", "Host memory for backups, in units of its own", labels=["worker", "pool", "set"]
        )
        for worker, figures in self._by_worker.items():
            total.add_metric([worker], figures.retractions)
            causes.add_metric([worker, "memory"], figures.by_memory)
            causes.add_metric([worker, "test"], figures.by_test)
            returns.add_metric([worker, "resumed"], figures.resumed)
            returns.add_metric([worker, "recomputed"], figures.recomputed)
            returns.add_metric([worker, "restored"], figures.restored)
            mismatches.add_metric([worker], figures.mismatched)
            waiting.add_metric([worker], figures.waiting)
            copied.add_metric([worker, "out"], figures.saved_bytes)
            copied.add_metric([worker, "in"], figures.restored_bytes)
            seconds.add_metric([worker, "copies"], figures.copy_s)
            seconds.add_metric([worker, "away"], figures.away_s)
            again.add_metric([worker], figures.recomputed_tokens)
            for pool in figures.host:
                host.add_metric([worker, pool.name, "free"], pool.free)
                host.add_metric([worker, pool.name, "held"], pool.held)
        return total, causes, returns, mismatches, waiting, copied, seconds, again, host
