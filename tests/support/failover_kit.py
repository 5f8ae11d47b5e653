"""Limiters on a shared store that can be away."""

from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}


def limiter(store: SharedStore, rules: list[Rule], fleet_size: int = 1) -> Limiter:
    clock = ManualClock(1_000_000.0)
    return Limiter(rules, store, clock, Settings(fleet_size=fleet_size, rejection_cache=0))


def rule(policy: str | None, limits: str = "4/minute", name: str = "api") -> Rule:
    return Rule(name=name, limits=limits, on_store_error=policy)
