"""Limits of an application that is built already, put on a test's clock or turned off: on every store, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import HOST, Server

from ratelimit_mw import Limiter, Rule, Verdict, load_settings
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock, limits_off, limits_timed_by

ANN = {"ip": "192.0.2.7"}
START = 1_000_000.0
RULES = [
    Rule(name="login", limits="3/minute", algorithm="sliding-window-log"),
    Rule(name="site", limits="9/hour", algorithm="fixed-window"),
]
Hit = Callable[[Limiter], Verdict]


def by_sync(limiter: Limiter) -> Verdict:
    return limiter.hit(ANN)


async def on_a_loop(limiter: Limiter) -> Verdict:
    try:
        return await limiter.ahit(ANN)
    finally:
        await limiter.store.aclose()  # every asyncio.run has a loop of its own


def by_async(limiter: Limiter) -> Verdict:
    return asyncio.run(on_a_loop(limiter))


both = pytest.mark.parametrize("hit", [by_sync, by_async])


@pytest.fixture(params=["memory", "lmdb", "redis", "memcached"])
def limiter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Limiter]:
    """A limiter without a clock, as applications build it, whose rules nobody else has."""
    kind = request.param
    where = {"memory": "", "lmdb": str(tmp_path / "limits")}.get(kind)
    if where is None:
        server: Server = request.getfixturevalue(f"{kind}_server")
        where = f"{HOST}:{server.port}"
    rules = [
        Rule(name=f"{rule.name}-{request.node.name}", limits=rule.limits, algorithm=rule.algorithm) for rule in RULES
    ]
    limiter = Limiter(rules, f"{kind}://{where}", settings=load_settings({"store_timeout": "10s"}))
    yield limiter
    limiter.close()


def passed(limiter: Limiter, hit: Hit, times: int = 4) -> list[bool]:
    return [hit(limiter).allowed for _ in range(times)]


@both
def test_the_clock_of_a_test_rules_on_every_store(limiter: Limiter, hit: Hit) -> None:
    """A limiter that was built before waits for nothing but this clock, to the microsecond."""
    clock = ManualClock(START)
    with limits_timed_by(clock):
        assert passed(limiter, hit) == [True, True, True, False]
        clock.advance(59.999_999)
        assert hit(limiter).retry_after == 0.000_001
        clock.advance(0.000_001)
        assert passed(limiter, hit) == [True, True, True, False]
        clock.set(START + 3600)
        assert hit(limiter).decisions[1].remaining == 8


@both
def test_what_a_test_counts_is_its_own(limiter: Limiter, hit: Hit) -> None:
    """Neither does a test see what was counted before it, nor does anybody see afterwards what it counted."""
    assert passed(limiter, hit, 2) == [True, True]
    for start in (START, START, 5 * START):
        with limits_timed_by(ManualClock(start)):
            assert passed(limiter, hit) == [True, True, True, False]
    assert passed(limiter, hit, 2) == [True, False]


def test_two_workers_are_counted_together_on_it(redis_server: Server) -> None:
    """Limiters that share a store share their counts within a test, too."""
    address = f"redis://{HOST}:{redis_server.port}"
    workers = [Limiter([Rule(name="two-workers-in-a-test", limits="3/minute")], address) for _ in range(2)]
    with limits_timed_by(ManualClock(START)):
        assert [worker.hit(ANN).allowed for worker in workers * 2] == [True, True, True, False]
    for worker in workers:
        worker.close()


def test_corrections_and_resets_find_what_the_test_counted() -> None:
    """Giving back, settling, peeking and forgetting mean the keys of the test."""
    limiter = Limiter([Rule(name="login", limits="5/minute")])
    assert limiter.hit(ANN, 4).decisions[0].remaining == 1
    with limits_timed_by(ManualClock(START)):
        verdict = limiter.hit(ANN, 5)
        assert not limiter.peek(ANN)
        limiter.settle(verdict, 2)
        assert limiter.peek(ANN, 0).decisions[0].remaining == 3
        limiter.refund(verdict)
        assert limiter.hit(ANN, 5)
        limiter.reset("login", ANN)
        assert limiter.peek(ANN, 0).decisions[0].remaining == 5
    assert limiter.peek(ANN, 0).decisions[0].remaining == 1


def test_a_limiter_with_a_clock_of_its_own_keeps_it() -> None:
    """Whoever has given a clock means that one: neither its time nor its counts change."""
    own = ManualClock(START)
    limiter = Limiter([Rule(name="login", limits="1/minute")], clock=own)
    assert limiter.hit(ANN)
    clock = ManualClock(START + 600)
    with limits_timed_by(clock):
        assert not limiter.hit(ANN)
        own.advance(60)
        assert limiter.hit(ANN)


def test_a_store_with_a_clock_of_its_own_follows() -> None:
    """The clock of a store is what counts for limiters that have none, so the test's goes before it."""
    limiter = Limiter([Rule(name="login", limits="1/minute")], MemoryStore(clock=ManualClock(7.0)))
    clock = ManualClock(START)
    with limits_timed_by(clock):
        assert limiter.hit(ANN)
        assert limiter.hit(ANN).decisions[0].at == START
        clock.advance(120)
        assert limiter.hit(ANN)


def test_rejections_that_are_remembered_follow(redis_server: Server) -> None:
    """A rejection is remembered for as long as the test's clock says, and not beyond the test."""
    rules = [Rule(name="remembered-in-a-test", limits="1/minute", algorithm="sliding-window-log")]
    settings = load_settings({"rejection_cache": "1h"})
    limiter = Limiter(rules, f"redis://{HOST}:{redis_server.port}", settings=settings)
    clock = ManualClock(START)
    with limits_timed_by(clock):
        assert [limiter.hit(ANN).allowed for _ in range(3)] == [True, False, False]
        clock.advance(60)
        assert limiter.hit(ANN)
        assert not limiter.hit(ANN)
    assert limiter.hit(ANN)
    limiter.close()


def test_one_within_another_gives_it_back() -> None:
    """Blocks within blocks: the innermost clock counts, and the outer one goes on where it was."""
    limiter = Limiter([Rule(name="login", limits="1/minute")])
    outer, inner = ManualClock(START), ManualClock(START + 30)
    with limits_timed_by(outer):
        assert limiter.hit(ANN)
        with limits_timed_by(inner), limits_off():
            assert [limiter.hit(ANN).rules for _ in range(2)] == [(), ()]
        with limits_timed_by(inner):
            assert [limiter.hit(ANN).allowed for _ in range(2)] == [True, False]
        assert not limiter.hit(ANN)
        outer.advance(120)
        assert limiter.hit(ANN)


def test_a_clock_that_tells_seconds_is_rejected() -> None:
    """``time.time`` is a mistake that is named, and changes nothing."""
    limiter = Limiter([Rule(name="login", limits="1/minute")])
    with pytest.raises(TypeError, match="microseconds"), limits_timed_by(lambda: 1.5):  # type: ignore[arg-type,return-value]
        pass
    assert [limiter.hit(ANN).allowed for _ in range(2)] == [True, False]


def test_an_error_in_a_test_ends_its_clock() -> None:
    """A test that fails leaves nothing behind."""
    limiter = Limiter([Rule(name="login", limits="1/minute")])
    with pytest.raises(ZeroDivisionError), limits_timed_by(ManualClock(START)):
        assert 1 / len(limiter.hit(ANN).rejected_by)
    assert limiter.hit(ANN).decisions[0].at > START * 1000


@both
def test_limits_are_off_on_every_store(limiter: Limiter, hit: Hit) -> None:
    """Also where an event loop awaits a shared store: nothing is decided, counted or asked."""
    with limits_off():
        assert [hit(limiter).rules for _ in range(5)] == [()] * 5
    assert hit(limiter).decisions[0].remaining == 2


@both
def test_limits_off_asks_no_store(hit: Hit) -> None:
    """A store that would raise is not even asked."""

    class Broken(Store):
        def apply(self, *_: object) -> list[object]:  # type: ignore[override]
            raise AssertionError("asked")

        correct = forget = apply  # type: ignore[assignment]

    with limits_off():
        assert hit(Limiter(RULES, Broken()))  # type: ignore[abstract]
