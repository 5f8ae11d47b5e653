"""The default algorithm on every store: exact for small amounts, and a key for each of its two forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import memcached_handles
import pytest
import redis_handles
from servers import Server

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
PATIENT = 10_000_000
NOON = 1_767_268_800.0  # the start of a minute and of an hour
MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda request, folder: "memory://",
    "lmdb": lambda request, folder: f"lmdb://{folder}/counts?size=16MiB",
    "redis": lambda request, folder: redis_handles.address(_server(request, "redis_server")),
    "memcached": lambda request, folder: memcached_handles.address(_server(request, "memcached_server")),
}


def _server(request: pytest.FixtureRequest, fixture: str) -> Server:
    server: Server = request.getfixturevalue(fixture)
    return server


@pytest.fixture(params=MAKERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(MAKERS[request.param](request, tmp_path), PATIENT)) as opened:
        yield opened


def limiter_of(store: Store, clock: ManualClock, limits: str, rule: str = "") -> Limiter:
    return Limiter([Rule(name=rule or uuid4().hex, limits=limits)], store, clock)


@pytest.mark.parametrize(("limits", "amount", "period"), [("1/minute", 1, 60), ("3/hour", 3, 3600), ("32/s", 32, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_amount_holds_in_any_period(store: Store, limits: str, amount: int, period: int, seed: int) -> None:
    """At random, in bursts, and around full minutes and hours, no period allows more than the amount."""
    chance, clock = random.Random(seed), ManualClock(NOON)
    limiter, now, allowed = limiter_of(store, clock, limits), NOON + chance.random() * period, []
    for _ in range(150 if amount < 32 else 400):
        edge = (now // period + 1) * period
        now = chance.choice(
            [now, now + 0.001, edge - 0.001, edge, edge + 0.001, now + chance.random() * period / amount]
        )
        clock.set(now)
        allowed += [now] * limiter.hit(WHO).allowed
    assert len(allowed) > amount
    assert all(last - first > period - 1e-6 for first, last in zip(allowed, allowed[amount:], strict=False))


@pytest.mark.parametrize(("limits", "amount", "period"), [("1/minute", 1, 60), ("3/hour", 3, 3600)])
def test_a_client_that_never_stops_gets_exactly_the_amount(store: Store, limits: str, amount: int, period: int) -> None:
    """In each of five periods, from the first request on."""
    clock = ManualClock(NOON + 0.7 * period)
    limiter, allowed = limiter_of(store, clock, limits), []
    for _ in range(5):
        passed = 0
        for _ in range(20):
            passed += limiter.hit(WHO).allowed
            clock.advance(period / 20)
        allowed.append(passed)
    assert allowed == [amount] * 5


@pytest.mark.parametrize(
    ("before", "after", "remaining"), [(20, 30, 25), (30, 20, 15), (32, 33, 33), (33, 32, 32), (33, 40, 35)]
)
def test_a_changed_amount_keeps_its_count_on_either_side_of_32(
    store: Store, before: int, after: int, remaining: int
) -> None:
    """An amount that crosses 32 is counted in another way, so it starts fresh. The old count stays under its key."""
    clock, rule = ManualClock(NOON + 1), uuid4().hex
    old, new = (limiter_of(store, clock, f"{amount}/hour", rule) for amount in (before, after))
    for _ in range(5):
        assert old.hit(WHO)
    assert new.peek(WHO, cost=0).decisions[0].remaining == remaining
    assert old.peek(WHO, cost=0).decisions[0].remaining == before - 5
