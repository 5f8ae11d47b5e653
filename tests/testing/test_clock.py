"""`limits_timed_by` and `limits_off` affect limiters that exist already, on every store, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_handles import PATIENT, address
from servers import HOST, Server
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, Verdict, load_settings
from ratelimit_mw.stores import MemoryStore, Store, open_store
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
    """A limiter without a clock, with rules that no other test uses."""
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
def test_clock_of_the_test_decides_on_every_store(limiter: Limiter, hit: Hit) -> None:
    """A limiter that was built before uses this clock only, to the microsecond."""
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
def test_counts_inside_and_outside_are_separate(limiter: Limiter, hit: Hit) -> None:
    """The test sees no earlier counts, and its own counts are not visible afterwards."""
    assert passed(limiter, hit, 2) == [True, True]
    for start in (START, START, 5 * START):
        with limits_timed_by(ManualClock(start)):
            assert passed(limiter, hit) == [True, True, True, False]
    assert passed(limiter, hit, 2) == [True, False]


def test_two_limiters_share_counts_in_a_shared_store(redis_server: Server) -> None:
    """This holds inside a test, too."""
    rule = Rule(name="two-workers-in-a-test", limits="3/minute")
    workers = [Limiter([rule], open_store(address(redis_server), PATIENT)) for _ in range(2)]
    with limits_timed_by(ManualClock(START)):
        assert [worker.hit(ANN).allowed for worker in workers * 2] == [True, True, True, False]
    for worker in workers:
        worker.close()


def test_corrections_and_resets_use_the_keys_of_the_test() -> None:
    """Refund, settle, peek and reset change the counts of the test."""
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


def test_a_rejection_outside_is_no_rejection_of_the_test() -> None:
    """The process remembers rejections of a store that is shared."""
    limiter = Limiter([Rule(name="login", limits="1/hour"), Rule(name="site", limits="9/hour")], SharedStore())
    assert [limiter.hit(ANN).allowed for _ in range(3)] == [True, False, False]
    with limits_timed_by(ManualClock(START)):
        assert [limiter.hit(ANN).allowed for _ in range(2)] == [True, False]
    assert not limiter.hit(ANN)


def test_a_limiter_with_a_clock_of_its_own_keeps_it() -> None:
    """Neither its time nor its counts change."""
    own = ManualClock(START)
    limiter = Limiter([Rule(name="login", limits="1/minute")], clock=own)
    assert limiter.hit(ANN)
    clock = ManualClock(START + 600)
    with limits_timed_by(clock):
        assert not limiter.hit(ANN)
        own.advance(60)
        assert limiter.hit(ANN)


def test_clock_of_the_test_overrides_the_clock_of_a_store() -> None:
    """A limiter without a clock otherwise uses the clock of its store."""
    limiter = Limiter([Rule(name="login", limits="1/minute")], MemoryStore(clock=ManualClock(7.0)))
    clock = ManualClock(START)
    with limits_timed_by(clock):
        assert limiter.hit(ANN)
        assert limiter.hit(ANN).decisions[0].at == START
        clock.advance(120)
        assert limiter.hit(ANN)


def test_rejection_cache_uses_the_clock_of_the_test(redis_server: Server) -> None:
    """A cached rejection ends by this clock, and at the end of the test."""
    rules = [Rule(name="remembered-in-a-test", limits="1/minute", algorithm="sliding-window-log")]
    settings = load_settings({"rejection_cache": "1h"})
    limiter = Limiter(rules, open_store(address(redis_server), PATIENT), settings=settings)
    clock = ManualClock(START)
    with limits_timed_by(clock):
        assert [limiter.hit(ANN).allowed for _ in range(3)] == [True, False, False]
        clock.advance(60)
        assert limiter.hit(ANN)
        assert not limiter.hit(ANN)
    assert limiter.hit(ANN)
    limiter.close()


def test_blocks_can_be_nested() -> None:
    """The innermost clock is used, and the outer clock continues afterwards."""
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


def test_clock_in_seconds_raises_type_error() -> None:
    """``time.time`` is a mistake, and changes nothing."""
    limiter = Limiter([Rule(name="login", limits="1/minute")])
    with pytest.raises(TypeError, match="microseconds"), limits_timed_by(lambda: 1.5):  # type: ignore[arg-type,return-value]
        pass
    assert [limiter.hit(ANN).allowed for _ in range(2)] == [True, False]


def test_exception_in_the_block_ends_it() -> None:
    """The clock of the limiter is restored."""
    limiter = Limiter([Rule(name="login", limits="1/minute")])
    with pytest.raises(ZeroDivisionError), limits_timed_by(ManualClock(START)):
        assert 1 / len(limiter.hit(ANN).rejected_by)
    assert limiter.hit(ANN).decisions[0].at > START * 1000


@both
def test_limits_are_off_on_every_store(limiter: Limiter, hit: Hit) -> None:
    """Every hit is allowed, sync and async, and nothing is counted."""
    with limits_off():
        assert [hit(limiter).rules for _ in range(5)] == [()] * 5
    assert hit(limiter).decisions[0].remaining == 2


@both
def test_limits_off_calls_no_function_of_limits(hit: Hit) -> None:
    """A test without limits needs no database."""
    rule = Rule(limits=lambda ip: pytest.fail("called"), schedule={"mon": "1/minute"}, timezone="UTC")
    with limits_off():
        assert hit(Limiter([rule])).rules == ()


@both
def test_limits_off_does_not_use_the_store(hit: Hit) -> None:
    """A store that raises is not called."""

    class Broken(Store):
        def apply(self, *_: object) -> list[object]:  # type: ignore[override]
            raise AssertionError("asked")

        correct = forget = apply  # type: ignore[assignment]

    with limits_off():
        assert hit(Limiter(RULES, Broken()))  # type: ignore[abstract]
