"""`limits_timed_by` and `limits_off` affect limiters that exist already, on every store, sync and async."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import HOST, Server
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock, limits_off, limits_timed_by

ANN = {"ip": "192.0.2.7"}
START = 1_000_000.0


@pytest.fixture(params=["memory", "lmdb", "redis", "memcached"])
def limiters(request: pytest.FixtureRequest, tmp_path: Path, way: Any) -> Iterator[tuple[Any, Any]]:
    """Two limiters without a clock, on one store, with rules that no other test uses."""
    kind = request.param
    server: Server | None = None if kind in ("memory", "lmdb") else request.getfixturevalue(f"{kind}_server")
    url = f"lmdb://{tmp_path}/limits" if server is None else f"{kind}://{HOST}:{server.port}"
    rules = [
        Rule(name=f"login-{request.node.name}", limits="3/minute", algorithm="sliding-window-log"),
        Rule(name=f"site-{request.node.name}", limits="9/hour", algorithm="fixed-window"),
    ]
    store = MemoryStore() if kind == "memory" else url
    settings = load_settings({"store_timeout": "10s"})
    first, second = (way(Limiter(rules, store, settings=settings)) for _ in range(2))
    yield first, second
    first.close()
    second.close()


def limiter(store: Any = None, limits: str = "1/minute") -> Limiter:
    return Limiter([Rule(name="login", limits=limits)], store)


def passed(limiter: Any, times: int = 4) -> list[bool]:
    return [limiter.hit(ANN).allowed for _ in range(times)]


def test_clock_of_the_test_decides_on_every_store(limiters: tuple[Any, Any]) -> None:
    """A limiter that was built before uses this clock only, to the microsecond, and shares counts as otherwise."""
    clock = ManualClock(START)
    first, second = limiters
    with limits_timed_by(clock):
        assert passed(first) == [True, True, True, False]
        clock.advance(59.999_999)
        assert second.hit(ANN).retry_after == 0.000_001
        clock.advance(0.000_001)
        assert passed(second) == [True, True, True, False]
        clock.set(START + 3600)
        assert first.hit(ANN).decisions[1].remaining == 8


def test_counts_inside_and_outside_are_separate(limiters: tuple[Any, Any]) -> None:
    """The test sees no earlier counts, and its own counts are not visible afterwards. ``limits_off`` counts nothing."""
    limiter, _ = limiters
    assert passed(limiter, 2) == [True, True]
    for start in (START, START, 5 * START):
        with limits_timed_by(ManualClock(start)):
            assert passed(limiter) == [True, True, True, False]
    with limits_off():
        assert [limiter.hit(ANN).rules for _ in range(5)] == [()] * 5
    assert passed(limiter, 2) == [True, False]


def test_corrections_and_resets_use_the_keys_of_the_test(way: Any) -> None:
    """Refund, settle, peek, inspect and reset use the counts of the test, and the overrides of its clients."""
    rate, clients = way(one := limiter(limits="5/minute")), way(one.clients)
    assert rate.hit(ANN, 4).decisions[0].remaining == 1
    with limits_timed_by(ManualClock(START)):
        verdict = rate.hit(ANN, 5)
        assert not rate.peek(ANN)
        rate.settle(verdict, 2)
        assert rate.peek(ANN, 0).decisions[0].remaining == 3
        rate.refund(verdict)
        assert rate.hit(ANN, 5)
        clients.override("login", ANN, "7/minute")
        pages = clients.inspect("login", ANN), clients.inspect()
        assert [[each.remaining for each in page.decisions] for page in pages] == [[2], [2]]
        assert clients.remove_override("login", ANN)
        rate.reset("login", ANN)
        assert rate.peek(ANN, 0).decisions[0].remaining == 5
    assert rate.peek(ANN, 0).decisions[0].remaining == 1


def test_the_rejection_cache_uses_the_clock_of_the_test() -> None:
    """A cached rejection ends by this clock, and at the end of the test. One from outside is none of the test."""
    clock, rules = ManualClock(START), [Rule(name="login", limits="1/minute"), Rule(name="site", limits="9/hour")]
    rate = Limiter(rules, SharedStore(), settings=load_settings({"rejection_cache": "1h"}))
    assert passed(rate, 3) == [True, False, False]
    with limits_timed_by(clock):
        assert passed(rate, 3) == [True, False, False]
        clock.advance(60)
        assert passed(rate, 2) == [True, False]
    assert not rate.hit(ANN)


def test_a_limiter_with_a_clock_of_its_own_keeps_it() -> None:
    """Neither its time nor its counts change."""
    own = ManualClock(START)
    rate = Limiter([Rule(name="login", limits="1/minute")], clock=own)
    assert rate.hit(ANN)
    with limits_timed_by(ManualClock(START + 600)):
        assert not rate.hit(ANN)
        own.advance(60)
        assert rate.hit(ANN)


def test_clock_of_the_test_overrides_the_clock_of_a_store() -> None:
    """A limiter without a clock otherwise uses the clock of its store."""
    rate, clock = limiter(MemoryStore(clock=ManualClock(7.0))), ManualClock(START)
    with limits_timed_by(clock):
        assert rate.hit(ANN)
        assert rate.hit(ANN).decisions[0].at == START
        clock.advance(120)
        assert rate.hit(ANN)


def test_blocks_can_be_nested() -> None:
    """The innermost clock is used, and the outer clock continues afterwards."""
    rate = limiter()
    outer, inner = ManualClock(START), ManualClock(START + 30)
    with limits_timed_by(outer):
        assert rate.hit(ANN)
        with limits_timed_by(inner), limits_off():
            assert [rate.hit(ANN).rules for _ in range(2)] == [(), ()]
        with limits_timed_by(inner):
            assert passed(rate, 2) == [True, False]
        assert not rate.hit(ANN)
        outer.advance(120)
        assert rate.hit(ANN)


def test_an_error_ends_the_block() -> None:
    """Also that of a clock in seconds, such as ``time.time``. Then the clock of the limiter is used."""
    rate = limiter()
    with pytest.raises(TypeError, match="microseconds"), limits_timed_by(lambda: 1.5):  # type: ignore[arg-type,return-value]
        pass
    with pytest.raises(ZeroDivisionError), limits_timed_by(ManualClock(START)):
        assert 1 / len(rate.hit(ANN).rejected_by)
    assert rate.hit(ANN).decisions[0].at > START * 1000


def test_limits_off_calls_neither_functions_nor_the_store(way: Any) -> None:
    """A test without limits needs no database."""

    class Broken(Store):
        def apply(self, *_: object) -> list[object]:  # type: ignore[override]
            raise AssertionError("asked")

        correct = forget = apply  # type: ignore[assignment]

    rule = Rule(limits=lambda ip: pytest.fail("called"), schedule={"mon": "1/minute"}, timezone="UTC")
    with limits_off():
        assert way(Limiter([rule])).hit(ANN).rules == ()
        assert way(limiter(Broken())).hit(ANN)  # type: ignore[abstract]
