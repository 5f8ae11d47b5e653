"""Instruments of OpenTelemetry with names of this package, and the attributes of spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final

from ..errors import MissingExtraError
from ..limiter.observers.events import Event
from ..limiter.observers.readers import OutcomeReader
from . import BUCKETS, GAUGES, REQUESTS, STORE, Instrument

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider
    from opentelemetry.trace import get_current_span
except ImportError:
    raise MissingExtraError("ratelimit_mw.metrics.opentelemetry", "metrics") from None

__all__ = ["OpenTelemetryMetrics", "annotate", "count"]

_NAMES: Final = {
    "breaker": "ratelimit.store.breaker_open",
    "limit": "ratelimit.adaptive.limit",
    "in_flight": "ratelimit.adaptive.in_flight",
}
_ATTRIBUTES: Final = ("outcome", "store", "rules", "limited_by", "endpoint", "method", "wait")


class OpenTelemetryMetrics(OutcomeReader):
    """Count the outcomes of rules, and measure the store. It is an observer.

    The instruments are ``ratelimit.requests``, ``ratelimit.store.duration``, ``ratelimit.store.breaker_open``,
    ``ratelimit.adaptive.limit`` and ``ratelimit.adaptive.in_flight``. A request only adds to a number in memory. The
    SDK reads the numbers when it exports, and when a limiter is closed.

    Args:
        provider: The provider of the meter. Default: the global one.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        super().__init__()
        self._provider = provider
        meter = (provider or get_meter_provider()).get_meter("ratelimit_mw")
        requests = partial(_observe, REQUESTS, self.totals)
        meter.create_observable_counter("ratelimit.requests", [requests], "{request}", REQUESTS.description)
        for name, each in GAUGES.items():
            read = partial(_observe, each, partial(self.gauges, name))
            meter.create_observable_gauge(_NAMES[name], [read], "1", each.description)
        self._store = meter.create_histogram(
            "ratelimit.store.duration", "s", STORE.description, explicit_bucket_boundaries_advisory=BUCKETS
        )

    def measure_store(self, seconds: float, store: str, result: str) -> None:
        self._store.record(seconds, _attributes(STORE, (store, result)))

    def write(self) -> None:
        """Let the SDK export now. uvicorn ends its processes with a signal, so the SDK does not notice their end."""
        flush = getattr(self._provider or get_meter_provider(), "force_flush", None)
        if flush is not None:
            flush()


def _observe(
    instrument: Instrument, read: Callable[[], Mapping[Any, int]], _: CallbackOptions
) -> Iterable[Observation]:
    return [Observation(number, _attributes(instrument, labels)) for labels, number in read().items()]


def _attributes(instrument: Instrument, labels: Iterable[str]) -> dict[str, str]:
    return {f"ratelimit.{name}": value for name, value in zip(instrument.labels, labels, strict=True) if value}


_reader: Final = cache(OpenTelemetryMetrics)
"""Returns the reader of this process, which is built when an observer needs it."""


def count(event: Event) -> None:
    """Count an event in the global meter provider. It is an observer.

    Args:
        event: The event of a request.
    """
    _reader()(event)


vars(count).update(reader=_reader)


def annotate(event: Event) -> None:
    """Add the outcome of a request to its span, as attributes. It is an observer.

    The instrumentation of a framework may end the span with the response, so it is also called at its start.

    Args:
        event: The event of a request.
    """
    span = get_current_span()
    if span.is_recording():
        for name in _ATTRIBUTES:
            if value := getattr(event, name):
                span.set_attribute(f"ratelimit.{name}", value)


vars(annotate).update(is_early=True)
