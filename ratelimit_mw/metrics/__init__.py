"""Observers that show decisions in Prometheus and OpenTelemetry: the same numbers, with the same labels."""

from __future__ import annotations

from typing import Final, NamedTuple


class Instrument(NamedTuple):
    """A number that both show."""

    description: str
    labels: tuple[str, ...]


REQUESTS: Final = Instrument("Requests that a rule decided, by the outcome of the rule.", ("rule", "outcome", "store"))
GAUGES: Final = {
    "breaker": Instrument("1 while the store is not called, because it was unreachable.", ("store",)),
    "limit": Instrument("The amount of an adaptive limit of this process.", ("rule", "reason")),
    "in_flight": Instrument("The requests in flight of an adaptive limit of this process.", ("rule",)),
}
STORE: Final = Instrument("The time of a call of the store.", ("store", "result"))
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds of that time, in seconds."""
