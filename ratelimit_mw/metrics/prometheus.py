"""Counters for Prometheus: ``ratelimit_mw_requests_total`` by rule, outcome and store."""

from __future__ import annotations

import atexit
import os
import threading
from functools import cache
from typing import Final

from ..errors import MissingExtraError
from ..forksafe import check_process, create_lock
from ..heartbeat import Heartbeat
from ..limiter.observers.counts import Labels, OutcomeCounts, counting
from ..limiter.observers.events import Event
from ..limiter.observers.number import Counter as Count
from ..limiter.observers.number import Number

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtraError("ratelimit_mw.metrics.prometheus", "metrics") from None

__all__ = ["PrometheusMetrics", "count"]

_NAME: Final = "ratelimit_mw_requests"
_HELP: Final = "Requests that a rate limit rule decided, by the outcome of the rule."
_LABELS: Final = ("rule", "outcome", "store")
_SEVERAL: Final = {"PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"}
"""The variables that make ``prometheus_client`` write the counts of each process to a file."""
_INTERVAL: Final = 1.0  # seconds


class PrometheusMetrics:
    """Count the outcomes of rules. It is an observer.

    With ``PROMETHEUS_MULTIPROC_DIR``, all processes count together, as in every counter of ``prometheus_client``. Each
    process writes its counts to its file once a second and at its end.

    Args:
        registry: The registry of the counter.

    Raises:
        ValueError: The registry has the counter already.

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
        if _SEVERAL & os.environ.keys():
            self._counts: OutcomeCounts = _FileCounts(Counter(_NAME, _HELP, _LABELS, registry=registry))
        else:
            self._counts = OutcomeCounts()
            registry.register(_Collector(self._counts))
        self.counter_of, self.write_counts = self._counts.counter_of, self._counts.write

    def __call__(self, event: Event) -> None:
        self._counts.add(event)


class _FileCounts(OutcomeCounts):
    """Counts that a thread adds to the file of this process, because each access to the file takes long."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        # A fork waits for the write, which holds a lock of prometheus_client, too.
        self._writing = create_lock(self, "_writing", threading.Lock, _FileCounts._start_empty)
        super().__init__()
        self._beat = Heartbeat(_FileCounts.write, _INTERVAL, "write metrics", "they are written at the end")
        atexit.register(self.write)

    def _start_empty(self, _intact: bool) -> None:
        self._numbers = {}  # the parent writes its own counts

    def counter_of(self, labels: Labels) -> Count:
        check_process()
        count = super().counter_of(labels)
        self._beat.hold(self)
        return count

    def _new_number(self, labels: Labels) -> Number:
        self._counter.labels(*labels)  # the request reports an error of the file, and not the thread
        return Number()

    def write(self) -> None:
        with self._writing:
            with self._lock:
                new = {labels: count for labels, number in self._numbers.items() if (count := number.take())}
            for labels, count in new.items():
                self._counter.labels(*labels).inc(count)


class _Collector(Collector):
    def __init__(self, counts: OutcomeCounts) -> None:
        self._counts = counts

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(_NAME, _HELP, labels=_LABELS)
        for labels, number in self._counts.totals().items():
            family.add_metric(labels, float(number))
        return [family]


@cache
def _of_process() -> PrometheusMetrics:
    return PrometheusMetrics()


@counting(lambda labels: _of_process().counter_of(labels), lambda: _of_process().write_counts())
def count(event: Event) -> None:
    """Count an event in the default registry of ``prometheus_client``. It is an observer.

    Args:
        event: The event of a request.
    """
    _of_process()(event)
