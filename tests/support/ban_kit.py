"""A rule with a ban, and a client that gets it."""

from typing import Any

from ratelimit_mw import Limiter, Rule

START = 1_000_000.0
WHO = {"ip": "192.0.2.7"}
BAN: dict[str, Any] = {"after": 2, "within": "10m", "for": "1h"}


def rule_of(name: str = "login", limits: str = "1/minute", **options: Any) -> Rule:
    return Rule(name=name, limits=limits, **{"ban": BAN, **options})


def ban_client(limiter: Limiter, hits: int = 3, who: dict[str, str] = WHO) -> None:
    for _ in range(hits):
        limiter.hit(who)
    assert limiter.hit(who).banned
