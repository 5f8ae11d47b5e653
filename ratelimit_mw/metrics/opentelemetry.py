"""Instruments of OpenTelemetry with the names of ASP.NET Core, and the attributes of spans.

The names are those of the semantic conventions: https://opentelemetry.io/docs/specs/semconv/dotnet/.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from ..errors import MissingExtraError
from ..limiter.observers.counts import Labels, OutcomeCounts, counting
from ..limiter.observers.events import REJECTED, Event

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider
    from opentelemetry.trace import get_current_span
except ImportError:
    raise MissingExtraError("ratelimit_mw.metrics.opentelemetry", "metrics") from None

__all__ = ["OpenTelemetryMetrics", "annotate", "count"]

_PREFIX: Final = "aspnetcore.rate_limiting"


class OpenTelemetryMetrics:
    """Count the outcomes of rules, and measure the time in queues. It is an observer.

    The instruments are ``aspnetcore.rate_limiting.requests`` and ``aspnetcore.rate_limiting.request.time_in_queue``.
    A request only adds to a number in memory. The SDK reads the numbers when it exports, and when a limiter is closed.

    Args:
        provider: The provider of the meter. Default: the global one.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._counts = OutcomeCounts()
        self._provider = provider
        self.counter_of = self._counts.counter_of
        meter = (provider or get_meter_provider()).get_meter("ratelimit_mw")
        meter.create_observable_counter(
            f"{_PREFIX}.requests", [self._observe], "{request}", "Requests that a rule decided."
        )
        self._queues = meter.create_histogram(
            f"{_PREFIX}.request.time_in_queue", "s", "The time that a request waited in a leaky-bucket queue."
        )

    def __call__(self, event: Event) -> None:
        self._counts.add(event)
        only = event.only_decision  # the wait of several decisions takes longer to find
        if (only is None or only.delay_us) and not event.is_rejected and event.wait:
            rules = dict.fromkeys(decision.rule for decision in event.decisions if decision.delay)
            for rule in rules:
                self._queues.record(event.wait, _attributes((rule, "allowed", event.store)))

    def write_counts(self) -> None:
        """Let the SDK export now. uvicorn ends its processes with a signal, so the SDK does not notice their end."""
        flush = getattr(self._provider or get_meter_provider(), "force_flush", None)
        if flush is not None:
            flush()

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(number, _attributes(labels)) for labels, number in self._counts.totals().items()]


def _attributes(labels: Labels) -> dict[str, str]:
    rule, outcome, store = labels
    result = "endpoint_limiter" if outcome in REJECTED else "acquired"
    policy = {f"{_PREFIX}.policy": rule} if rule else {}
    return {**policy, f"{_PREFIX}.result": result, "ratelimit_mw.outcome": outcome, "ratelimit_mw.store": store}


@cache
def _of_process() -> OpenTelemetryMetrics:
    return OpenTelemetryMetrics()


@counting(lambda labels: _of_process().counter_of(labels), lambda: _of_process().write_counts())
def count(event: Event) -> None:
    """Count an event in the global meter provider. It is an observer.

    Args:
        event: The event of a request.
    """
    _of_process()(event)


def annotate(event: Event) -> None:
    """Add the outcome of a request to its span, as attributes. It is an observer.

    Args:
        event: The event of a request.
    """
    span = get_current_span()
    if span.is_recording():
        span.set_attribute("ratelimit_mw.outcome", event.outcome)
        span.set_attribute("ratelimit_mw.store", event.store)
        span.set_attribute("ratelimit_mw.rules", event.rules)
        span.set_attribute("ratelimit_mw.limited_by", event.limited_by)
        if event.wait:
            span.set_attribute("ratelimit_mw.wait", event.wait)
