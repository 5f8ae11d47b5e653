"""Counters for Prometheus: ``ratelimit_mw_requests_total`` by rule, outcome and store."""

from __future__ import annotations

from functools import cache

from ..errors import MissingExtraError
from ..limiter.events import Event
from .series import LabelledCounters, labels_of

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter
except ImportError:
    raise MissingExtraError("ratelimit_mw.metrics.prometheus", "metrics") from None

__all__ = ["PrometheusMetrics", "count"]


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
        help_text = "Requests that a rate limit rule decided, by the outcome of the rule."
        counter = Counter("ratelimit_mw_requests", help_text, ["rule", "outcome", "store"], registry=registry)
        self.counters: LabelledCounters[Counter] = LabelledCounters(lambda labels: counter.labels(*labels))

    def __call__(self, event: Event) -> None:
        for labels in labels_of(event):
            self.counters[labels].inc()


@cache
def _of_process() -> PrometheusMetrics:
    return PrometheusMetrics()


def count(event: Event) -> None:
    """Count an event in the default registry of ``prometheus_client``. It is an observer.

    Args:
        event: The event of a request.
    """
    counters = _of_process().counters
    for labels in labels_of(event):
        counters[labels].inc()
