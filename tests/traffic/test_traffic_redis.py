"""A traffic log in Redis: expiry, size of calls, and the servers that a URL can have."""

from functools import partial
from typing import Any

import pytest
import redis
from forked import become_child
from redis.client import Pipeline
from redis_handles import address
from servers import Server
from tables import each
from traffic_records import NOW

from ratelimit_mw import StoreError
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog
from ratelimit_mw.traffic import redis as counts_in_redis

CLOCK = ManualClock(NOW)


def test_buckets_expire_after_their_retention(server: redis.Redis, own_server: Server, few: int) -> None:
    """No key stays forever, and a bucket lives a step longer than a range can ask for it."""
    log = TrafficLog(address(own_server), "1m:1h,1h:7d", CLOCK)
    log.record("a", "x", 10, at=NOW - 600)
    for i in range(9):
        log.record("a", f"x{i}", 10 + i)
    log.close()
    lives = {key.decode(): server.ttl(key) for key in server.scan_iter()}
    assert all(key.startswith("rl:{traffic}:") for key in lives)
    start = NOW // 60 * 60
    assert start + 120 + 3600 - NOW - 5 <= lives[f"rl:{{traffic}}:60:{start}"] <= start + 120 + 3600 - NOW
    hour = f"rl:{{traffic}}:3600:{NOW // 3600 * 3600}"
    assert 7 * 86_400 < lives[hour] <= 7 * 86_400 + 7200
    assert lives[hour] - 5 <= lives[f"{hour}:a"] <= lives[hour]
    assert not [key for key in lives if ":60:" in key and key.endswith(":a")]  # only coarse buckets have clients
    assert min(lives.values()) > 0


def test_a_large_batch_is_several_short_transactions(
    server: redis.Redis, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server serves others in between. Each client is counted once."""
    monkeypatch.setattr(counts_in_redis, "_PART", 1_000)
    monkeypatch.setattr(counts_in_redis, "_READS", 2)
    log = TrafficLog(address(own_server), clock=CLOCK)
    for i in range(20_000):
        log.record(f"a{i % 20}", f"c{i % 2_000}", 1 + (i == 1_500))
    log.record("b")
    log.flush()
    assert log.total("a0", NOW, NOW) == 1_001
    assert log.top("a0", NOW, NOW, 1) == [("c1500", 11)]
    assert log.distinct("a0", NOW, NOW) == 100
    assert 6 <= server.info("commandstats")["cmdstat_exec"]["calls"] <= 14
    log.close()


@pytest.mark.parametrize(("name", "most"), [("ip=203.0.113.{:03}", 100_000), ("{:0128}", 330_000)])
def test_the_clients_of_a_bucket_take_the_memory_of_the_page(
    server: redis.Redis, own_server: Server, name: str, most: int
) -> None:
    """A bucket with all the clients that it can have, and with the sketch of those that it has dropped."""
    log = TrafficLog(address(own_server), "1m:1d,1h:7d", CLOCK)
    for clients in (range(2_001), range(9_000, 10_000)):
        for i in clients:
            log.record("a", name.format(i))
        log.flush()
    log.close()
    sizes = {key.decode(): server.memory_usage(key, samples=0) for key in server.scan_iter()}
    assert most / 2 < sum(size for key, size in sizes.items() if ":3600:" in key) <= most
    assert sum(size for key, size in sizes.items() if ":60:" in key) <= 200


def test_a_part_that_is_sent_again_counts_once(
    own_server: Server, server: redis.Redis, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also drops no further clients. The reply of a transaction is lost."""
    monkeypatch.setattr("ratelimit_mw.traffic.log._MAX_NEW_COUNTS", 20)
    log = TrafficLog(address(own_server), "1h:7d", CLOCK)
    for i in range(4):
        log.record("a", f"d{i}")
    log.flush()
    for i in range(1, 31):
        log.record("a", f"c{i}", i)
    read, executed = Pipeline.parse_response, []

    def read_or_fail(self: Any, connection: Any, command: str, **options: Any) -> Any:
        found = read(self, connection, command, **options)
        if command == "_" and isinstance(found, list):  # the reply to EXEC
            executed.append(found)
            if len(executed) == 1:
                raise redis.ConnectionError("no reply")
        return found

    monkeypatch.setattr(Pipeline, "parse_response", read_or_fail)
    log.flush()
    assert [bool(each) for each in executed] == [True, False]
    found = log.top("a", NOW, NOW)
    assert found == [("c30", 30), ("c29", 29), ("c28", 28)]
    assert found.complete_from == 17 + 27 + 1 + 1
    assert log.total("a", NOW, NOW) == 469
    log.close()


@pytest.mark.parametrize("value", [b"\xff", b"many"])
def test_damaged_keys_are_a_store_error(server: redis.Redis, own_server: Server, value: bytes) -> None:
    """Another program has written bytes that are no UTF-8 or no number. Each method says so."""
    log = TrafficLog(address(own_server), "1h:7d", CLOCK)
    log.record("a", "x")
    log.flush()
    bucket = f"rl:{{traffic}}:3600:{NOW // 3600 * 3600}"
    server.hset(bucket, mapping={value: 1, "a": value})
    server.set(f"{bucket}:a", value)
    queries = (log.events, partial(log.total, "a"), partial(log.top, "a"), partial(log.total, "a", by="x"))
    for ask in queries:
        with pytest.raises(StoreError, match=r"starts with rl:\{traffic\} is damaged"):
            ask(NOW, NOW)
    server.set("rl:{traffic}:retention", b"\xff")
    with pytest.raises(StoreError, match="is damaged"):
        TrafficLog.open(address(own_server), CLOCK)
    log.record("a")
    with pytest.raises(StoreError, match="is damaged"):
        log.flush()
    become_child()  # nothing is left for the end of the process
    log.close()


@each(
    ("url", "message"),
    [
        ("redis://user:hidden@{}/0", "ConnectionError"),
        ("redis+cluster://user:hidden@{}", "RedisClusterException"),
        ("redis+sentinel://user:hidden@{}/shop", "MasterNotFoundError"),
    ],
)
def test_an_unreachable_server_is_a_store_error(
    url: str, message: str, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message and cause have no password, even where a client of redis-py shows it. The next call looks again."""
    monkeypatch.setattr(redis.Redis, "__repr__", lambda _: "<password=hidden>")
    log = TrafficLog(url.format("127.0.0.1:1"), clock=CLOCK)
    log.record("a")
    with pytest.raises(StoreError, match=message) as raised:
        log.flush()
    assert "hidden" not in f"{raised.value} {raised.value.__cause__!r} {log.name}"
    with monkeypatch.context() as restarted:
        restarted.setattr(counts_in_redis, "open_client", lambda _: server)
        log.flush()
