"""Counters for Prometheus: ``ratelimit_mw_requests_total`` by rule, outcome and store."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from ..errors import MissingExtraError
from ..limiter.counts import Number, OutcomeCounts, counting
from ..limiter.events import Event

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


class PrometheusMetrics:
    """Count the outcomes of rules. It is an observer.

    With ``PROMETHEUS_MULTIPROC_DIR``, all processes count together, as in every counter of ``prometheus_client``.

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
            counter = Counter(_NAME, _HELP, _LABELS, registry=registry)
            self._counts = OutcomeCounts(lambda labels: _InFile(counter.labels(*labels)))
        else:
            self._counts = OutcomeCounts()
            registry.register(_Collector(self._counts))
        self.counter_of = self._counts.counter_of

    def __call__(self, event: Event) -> None:
        self._counts.add(event)


class _InFile(Number):
    """A number that ``prometheus_client`` keeps in a file."""

    def __init__(self, counter: Counter) -> None:
        self.add = counter.inc


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


@counting(lambda labels: _of_process().counter_of(labels))
def count(event: Event) -> None:
    """Count an event in the default registry of ``prometheus_client``. It is an observer.

    Args:
        event: The event of a request.
    """
    _of_process()(event)
