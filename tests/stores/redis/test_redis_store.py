"""The effects of the store in the server: number of commands, keys and their expiry, and no write for a rejection."""

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis_handles import ALGORITHMS, NOW, calls, hit, limit_of, opened, undo
from servers import Server

from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.algorithms.fixed_window import CalendarWindow
from ratelimit_mw.clock import wall_us
from ratelimit_mw.decision import BanLimit, BanTerms, Charge, Correction, Decision, Hit
from ratelimit_mw.errors import StateError, StoreError
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.testing.store_suite import COUNTS_REJECTED

WRITES = {"set", "del", "zadd", "zremrangebyrank", "pexpireat", "hset", "incrby"}


@pytest.fixture
def store(own_server: Server, server: redis.Redis) -> Iterator[RedisStore]:
    """A store on the server, which is empty and has its scripts."""
    with opened(own_server) as found:
        found.apply([hit(limit_of("5/minute", spec)) for spec in ALGORITHMS])
        server.flushdb()
        server.config_resetstat()
        yield found


def snapshot(server: redis.Redis) -> dict[bytes, tuple[Any, int]]:
    """Every key with its content and its expiry."""
    found: dict[bytes, tuple[Any, int]] = {}
    for key in server.scan_iter():
        content = server.dump(key)
        found[key] = content, server.pexpiretime(key)
    return found


def test_a_rejection_leaves_every_counter_as_it_was(store: RedisStore, server: redis.Redis) -> None:
    """When the last of several limits rejects, no write command runs and no key has changed, whatever its algorithm."""
    wide = [limit_of("100/hour", spec) for spec in ALGORITHMS]
    narrow = limit_of("1/hour", "gcra")
    hits = [hit(limit) for limit in (*wide, narrow)]
    assert all(decision.allowed for decision in store.apply(hits))
    before = snapshot(server)
    server.config_resetstat()
    for _ in range(5):
        assert [decision.allowed for decision in store.apply(hits)] == [True] * len(wide) + [False]
    assert not WRITES & calls(server).keys()
    assert calls(server)["evalsha"] == 5
    assert snapshot(server) == before


def test_a_peek_and_a_look_write_nothing(store: RedisStore, server: redis.Redis) -> None:
    """Asking costs reads only, on fresh keys and on others."""
    hits = [hit(limit_of("5/hour", spec)) for spec in ALGORITHMS]
    store.apply(hits, consume=False)
    store.apply([one._replace(cost=0) for one in hits])
    assert not WRITES & calls(server).keys()
    assert list(server.scan_iter()) == []


@pytest.mark.parametrize("spec", ["sliding-window-log", COUNTS_REJECTED, "tiered-window"], ids=str)
def test_no_hit_rewrites_a_state_that_grows(store: RedisStore, server: redis.Redis, spec: Any) -> None:
    """A hit on a log of thousands moves few entries, with the commands for an empty one. Those that are old go."""
    limit = limit_of("5000/hour", spec)
    for i in range(3000):
        store.apply([hit(limit)], NOW + i * 1_000_000)
    server.config_resetstat()
    store.apply([hit(limit)], NOW + 3_600_000_000)
    assert sum(calls(server).values()) <= 10
    store.apply([hit(limit)], NOW + 10_000_000_000)
    assert [server.zcard(key) for key in server.scan_iter()] == [1]


def test_every_key_expires_after_whatever_was_done(store: RedisStore, server: redis.Redis) -> None:
    """Hits, rejections, charges, refunds: each leaves an expiry that covers the reset; a day when time is given."""
    limits = [limit_of("5 concurrent"), *(limit_of("5/day", spec) for spec in ALGORITHMS)]
    for limit, now in itertools.product(limits, (None, NOW)):
        server.flushdb()
        one = hit(limit)
        look = one._replace(cost=0)
        (first,) = store.apply([one], now)
        check_expiry(server, first, now)
        store.apply([one._replace(cost=9)], now)
        check_expiry(server, store.apply([look], now)[0], now)
        store.correct([Correction(limit, one.key, 20, None)], now)
        check_expiry(server, store.apply([look], now)[0], now)
        store.correct([Correction(limit, one.key, 1, Charge(first.at_us, 1, first.delay_us))], now)
        check_expiry(server, store.apply([look], now)[0], now)


def check_expiry(server: redis.Redis, decision: Decision, now: int | None) -> None:
    (key,) = server.scan_iter()
    expires_at = server.pexpiretime(key) * 1000
    if now is None:
        assert 0 <= expires_at - decision.at_us - decision.reset_us < 3000
    else:
        seconds, us = server.time()
        assert expires_at >= seconds * 1_000_000 + us + max(86_000_000_000, decision.reset_us - 400_000_000)


def test_a_clock_that_is_days_off_is_an_error_of_a_calendar(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has only the windows around the time of this process. A difference of hours is no problem."""
    limit = limit_of("5 per calendar day", zone="Europe/Berlin")
    one = Hit(limit, limit.prefix + "ip=192.0.2.7", 1)
    for hours, is_known in ((-20, True), (20, True), (-60, False), (60, False)):
        moved = partial(lambda hours: wall_us() + hours * 3_600_000_000, hours)
        monkeypatch.setattr("ratelimit_mw.stores.redis.call.wall_us", moved)
        if is_known:
            (decision,) = store.apply([one])
            assert decision.at_us + decision.reset_us == CalendarWindow(limit.quota).end_of(wall_us())
        else:
            with pytest.raises(StoreError, match="the clocks of Redis and of this process differ by days"):
                store.apply([one._replace(key=f"{one.key}{hours}")])


def test_what_is_given_back_whole_leaves_no_key(store: RedisStore, server: redis.Redis) -> None:
    """A key is gone when nothing counted is left in it."""
    hits = [hit(limit) for limit in (limit_of("5 concurrent"), *(limit_of("5/hour", spec) for spec in ALGORITHMS))]
    at = [decision.at_us for decision in store.apply(hits, NOW)]
    assert len(list(server.scan_iter())) == len(hits)
    store.correct([undo(one, when) for one, when in zip(hits, at, strict=True)], NOW)
    assert list(server.scan_iter()) == []
    (slot,) = store.apply([hits[0]._replace(cost=2)], NOW)
    server.config_resetstat()
    store.correct([undo(hits[0], slot.at_us - 1)], NOW)  # of a hit that took no slot
    assert not WRITES & calls(server).keys()
    for _ in range(2):  # the second knows nothing of the first, whose reply may have been lost
        store.correct([Correction(slot.hit.limit, slot.hit.key, 2, Charge(slot.at_us, 2))], NOW)
    assert list(server.scan_iter()) == []


def test_states_are_readable(store: RedisStore, server: redis.Redis) -> None:
    """GET shows a compact state as the text of its algorithm; keys are found by their prefix."""
    limit = build_limit("api", 0, limit_of("5/minute").quota, "fixed-window")
    store.apply([hit(limit, cost=3)], NOW)
    assert list(server.scan_iter("rl:1|api|*")) == [b"rl:1|api|fixed-window|1m|ip=192.0.2.7"]
    assert server.get("rl:1|api|fixed-window|1m|ip=192.0.2.7") == b"1767268860000000:3:%d" % NOW
    log = build_limit("log", 0, limit.quota, "sliding-window-log")
    store.apply([hit(log, cost=3)], NOW)
    store.apply([hit(log)], NOW + 5)
    (key,) = server.scan_iter("rl:1|log|*")
    assert server.zrange(key, 0, -1, withscores=True) == [(b"0:3", NOW), (b"3:1", NOW + 5)]


def test_a_key_of_another_kind_is_an_error_of_its_own(store: RedisStore, server: redis.Redis) -> None:
    """Values of another application: an error with their key, no change, and no effect on other requests."""
    compact, log, other = limit_of("5/hour", "gcra"), limit_of("5/hour", "sliding-window-log"), hit(limit_of("9/hour"))
    for limit, *value in (
        *[(limit, "LPUSH", "x") for limit in (compact, log)],
        *[(limit, "SET", "nonsense") for limit in (compact, BanLimit(BanTerms(1, 1, 1, 1, 1), compact))],
        *[(limit, "ZADD", 1, "nonsense") for limit in (log, limit_of("5 concurrent"))],
    ):
        one, changes = hit(limit), [undo(each, NOW) for each in (other, hit(limit))]
        server.execute_command(value[0], f"rl:{one.key}", *value[1:])
        for call, items in ((store.apply, [one]), (store.apply, [other, one, other]), (store.correct, changes)):
            with pytest.raises(StateError, match="does not hold a state") as error:
                call(items, NOW)
            assert error.value.keys == (one.key,)
        server.delete(f"rl:{one.key}")
    assert store.apply([other])[0].remaining == 8


def test_an_hour_of_threads_needs_few_connections(own_server: Server, store: RedisStore, server: redis.Redis) -> None:
    """Threads that come and go, one for each request, use the connections of those before them."""
    limit = limit_of("1000/hour")
    before = server.info("stats")["total_connections_received"]
    for _ in range(30):
        thread = threading.Thread(target=store.apply, args=([hit(limit)],))
        thread.start()
        thread.join()
    assert server.info("stats")["total_connections_received"] - before <= 1
    assert store.apply([hit(limit, cost=0)])[0].remaining == 970
