"""Metrics for Prometheus: ``ratelimit_mw_requests_total`` by rule, outcome and store, and the state of the store."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Final

from ..errors import MissingExtraError
from ..limiter.observers.events import Event, Labels, RequestOutcomes
from ..limiter.observers.readers import OutcomeReader
from ..runtime.forksafe import create_lock
from ..runtime.heartbeat import Heartbeat
from . import BUCKETS, GAUGES, REQUESTS, STORE

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtraError("ratelimit_mw.metrics.prometheus", "metrics") from None

__all__ = ["PrometheusMetrics", "count"]

_REQUESTS: Final = "ratelimit_mw_requests"
_GAUGES: Final = {
    "breaker": ("ratelimit_mw_store_breaker_open", "livemax"),
    "limit": ("ratelimit_mw_adaptive_limit", "liveall"),
    "in_flight": ("ratelimit_mw_adaptive_in_flight", "liveall"),
}
"""The name of each gauge, and how several processes show it."""
_SEVERAL: Final = {"PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"}
"""The variables that make ``prometheus_client`` write the counts of each process to a file."""
_INTERVAL: Final = 1.0  # seconds


class PrometheusMetrics(OutcomeReader, Collector):
    """Count the outcomes of rules, and measure the store. It is an observer.

    With ``PROMETHEUS_MULTIPROC_DIR``, all processes count together, as in every counter of ``prometheus_client``. Each
    process writes its counts to its file once a second and at its end.

    Args:
        registry: The registry of the metrics.

    Raises:
        ValueError: The registry has the metrics already.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> from ratelimit_mw import Limiter, Rule
        >>> registry = CollectorRegistry()
        >>> limiter = Limiter([Rule(name="api", limits="1/minute")], observers=[PrometheusMetrics(registry)])
        >>> limiter.hit({"ip": "192.0.2.7"}).allowed
        True
        >>> labels = {"rule": "api", "outcome": "allowed", "store": "memory"}
        >>> registry.get_sample_value("ratelimit_mw_requests_total", labels)
        1.0
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._store = Histogram("ratelimit_mw_store_seconds", *STORE, registry=registry, buckets=BUCKETS)
        self._counter: Counter | None = None
        if _SEVERAL & os.environ.keys():
            # Each access to the file takes long, so a thread adds to it.
            self._counter = Counter(_REQUESTS, *REQUESTS, registry=registry)
            self._gauges = {
                name: Gauge(full, *GAUGES[name], registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]
                for name, (full, mode) in _GAUGES.items()
            }
            self._shown = dict[str, dict[tuple[str, ...], int]]()
            self._writing = create_lock(self, "_writing", threading.Lock)
            self._beat = Heartbeat(PrometheusMetrics.write, _INTERVAL, "write metrics", "they are written at the end")
            atexit.register(self.write)
        else:
            registry.register(self)

    def start_over(self) -> None:
        super().start_over()
        self._written: dict[Labels, int] = {}

    def counters_of(self, outcomes: RequestOutcomes) -> list[Callable[[], object]]:
        if self._counter is not None:
            for labels in outcomes.labels:
                self._counter.labels(*labels)  # a request with new labels reports an error of the file
            self._beat.hold(self)
        return super().counters_of(outcomes)

    def write(self) -> None:
        if self._counter is None:
            return
        with self._writing:
            for labels, number in self.totals().items():
                self._counter.labels(*labels).inc(number - self._written.get(labels, 0))
                self._written[labels] = number
            for name, gauge in self._gauges.items():
                found = self.gauges(name)
                for labels in (*self._shown.get(name, ()), *found):  # a series that has ended is 0
                    gauge.labels(*labels).set(found.get(labels, 0))
                self._shown[name] = found

    def measure_store(self, seconds: float, store: str, result: str) -> None:
        self._store.labels(store, result).observe(seconds)

    def collect(self) -> list[Metric]:
        """Return the metrics for a registry. With several processes, each metric is in the registry itself."""
        requests = CounterMetricFamily(_REQUESTS, REQUESTS.description, labels=REQUESTS.labels)
        for labels, number in self.totals().items():
            requests.add_metric(labels, float(number))
        metrics: list[Metric] = [requests]
        for name, each in GAUGES.items():
            metrics.append(family := GaugeMetricFamily(_GAUGES[name][0], each.description, labels=each.labels))
            for values, value in self.gauges(name).items():
                family.add_metric(values, float(value))
        return metrics


_reader: Final = cache(PrometheusMetrics)
"""Returns the reader of this process, which is built when an observer needs it."""


def count(event: Event) -> None:
    """Count an event in the default registry of ``prometheus_client``. It is an observer.

    Args:
        event: The event of a request.
    """
    _reader()(event)


vars(count).update(reader=_reader)
