"""Rules, a clock and a header writer, and an independent parser that checks the headers."""

from typing import Any

import http_sf

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.http.headers import HeaderWriter
from ratelimit_mw.testing import ManualClock

FEATURES = {"ip": "192.0.2.7"}


class Scene:
    """Rules, a clock and a header writer. Each request returns its headers by name."""

    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.limiter = Limiter(rules, clock=self.clock)
        self.writer = HeaderWriter(**options, encoded=True)

    def hit(self, features: dict[str, str] | None = None, cost: int | None = None) -> dict[str, str]:
        return self.of(self.limiter.hit(FEATURES if features is None else features, cost))

    def of(self, verdict: Verdict) -> dict[str, str]:
        found = self.writer.headers(verdict)
        assert len({name for name, _ in found}) == len(found)
        assert all(name == name.lower() for name, _ in found)
        return {name.decode("ascii"): value.decode("ascii") for name, value in found}


def parsed(value: str) -> Any:
    """Parse a field with an independent parser of structured fields. The field must be in canonical form."""
    items = http_sf.parse(value.encode("ascii"), tltype="list")
    assert http_sf.ser(items) == value
    return items


def rule(limits: Any, name: str = "login", **options: Any) -> Rule:
    return Rule(name=name, limits=limits, **options)
