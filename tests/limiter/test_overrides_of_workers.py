"""How workers learn of the overrides of single clients, and agree on their record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import redis
from ban_kit import BAN
from override_stores import ACME, OTHER, Recording, learns, limiter_of, limits, set_elsewhere
from own_time import hurried
from servers import HOST, Server, redis_running
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, StateError, StoreError
from ratelimit_mw.rules.overrides import ClientOverride, dump_overrides, load_overrides
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.bytecall import Write
from ratelimit_mw.stores.redis.request import OwnCall


def test_another_worker_learns_of_a_change(workers: tuple[Limiter, Limiter], way: Any) -> None:
    first, second = workers
    assert limits(second) == ["100/minute"]
    way(first.clients).override("api", ACME, "7/minute")
    assert limits(first) == ["7/minute"]
    learns(second, ["7/minute"])
    way(second.clients).override("api", OTHER, "unlimited")
    learns(first, [], OTHER)
    assert [(each.client, each.limits) for each in way(first.clients).overrides()] == [
        ("user=acme", "7/minute"),
        ("user=other", "unlimited"),
    ]
    way(first.clients).clear_overrides()
    assert limits(first) == ["100/minute"]
    learns(second, ["100/minute"])
    for each_worker in workers:
        way(each_worker).close()


def test_a_worker_that_starts_knows_the_overrides(url: str, way: Any) -> None:
    """An ASGI application reads them at its start. One of WSGI is never started: its first request has them."""
    first, second, wsgi = limiter_of(store=url), limiter_of(store=url, reload_interval=0), limiter_of(store=url)
    first.clients.override("api", ACME, "7/minute")
    assert wsgi.hit(ACME).decisions[0].limit == 7
    wsgi.close()
    way(second).start()
    assert limits(second) == ["7/minute"]
    first.clients.remove_override("api", ACME)
    assert limits(second) == ["7/minute"]  # it never looks again
    first.close()
    way(second).close()


def test_the_first_operation_of_a_process_knows_the_overrides(way: Any) -> None:
    """A script of an operator has no requests."""
    rule, store = Rule(name="api", key=["user"], limits="100/minute", ban=BAN), Recording()
    (counted,) = limiter_of(rule, store=store).hit(ACME).decisions
    set_elsewhere(store, "70/minute")
    for operation, client in ("inspect_key", [counted.key]), ("inspect", ["api", ACME]):
        found = getattr(way(limiter_of(rule, store=store).clients), operation)(*client)
        assert [each.limit for each in getattr(found, "decisions", found)] == [70]
    set_elsewhere(store, "unlimited")
    expect_error("has the override 'unlimited'", way(limiter_of(rule, store=store).clients).ban, "api", ACME)


def test_two_workers_change_the_overrides_at_once(workers: tuple[Limiter, Limiter]) -> None:
    """No change is lost."""

    def change(limiter: Limiter, name: str) -> None:
        for number in range(10):
            limiter.clients.override("api", {"user": f"{name}{number}"}, "7/minute")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(change, workers, "ab"))
    assert {each.client for each in workers[0].clients.overrides()} == {f"user={n}{i}" for n in "ab" for i in range(10)}


def test_limiters_with_one_store_object_learn_at_once() -> None:
    store = MemoryStore()
    first, second = limiter_of(store=store), limiter_of(store=store)
    first.clients.override("api", ACME, "7/minute")
    assert limits(second) == ["7/minute"]
    assert limits(limiter_of(store=store)) == ["7/minute"]
    assert limits(limiter_of()) == ["100/minute"]


def test_a_store_without_records_is_not_asked() -> None:
    limiter = limiter_of(store=SharedStore())
    assert limiter.reloads.watch is None
    assert limiter.clients.bans().decisions == []
    with pytest.raises(ConfigError, match="keeps no records"):
        limiter.clients.override("api", ACME, "7/minute")


def test_a_change_that_fails_at_the_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is none is named, and can be cleared."""
    limiter = limiter_of(store=Recording())
    error = StateError("it is a list", ["record|overrides"])
    monkeypatch.setattr(limiter.store, "read_record", Mock(side_effect=[error, error, None]))
    with pytest.raises(StoreError, match=r"it is a list.*clear_overrides\(\)"):
        limiter.clients.override("api", ACME, "7/minute")
    limiter.clients.clear_overrides()


def test_a_key_of_another_type_is_named_and_can_be_cleared(redis_server: Server, way: Any) -> None:
    prefix = f"t{uuid4().hex}:"
    limiter = limiter_of(store=f"redis://{HOST}:{redis_server.port}/0?prefix={prefix}")
    with redis.Redis(HOST, redis_server.port) as client:
        client.lpush(f"{prefix}record|overrides", "x")
        with pytest.raises(StoreError, match=r"'record\|overrides' does not hold a record.*clear_overrides"):
            way(limiter.clients).override("api", ACME, "7/minute")
        way(limiter.clients).clear_overrides()
        way(limiter.clients).override("api", ACME, "8/minute")
        assert limits(limiter) == ["8/minute"]
    way(limiter).close()


def test_a_change_that_always_loses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = limiter_of()
    monkeypatch.setattr(limiter.store, "write_record", lambda *_: False)
    for change in (lambda: limiter.clients.override("api", ACME, "7/minute"), limiter.clients.clear_overrides):
        with pytest.raises(StoreError, match=r"^other processes kept changing the overrides\. Try again$"):
            change()


def test_two_processes_agree_on_the_record() -> None:
    """The form is fixed, because workers of the last version may read it."""
    override = ClientOverride("api", "{user=acme\ud800}", "7/minute", 5)
    lasting = ClientOverride("a", "", "unlimited")
    data = dump_overrides([override, lasting])
    assert data.partition(b"\n")[2] == (
        b'[{"rule":"api","key":"{user=acme\\ud800}","limits":"7/minute","until_us":5},'
        b'{"rule":"a","key":"","limits":"unlimited"}]'
    )
    assert load_overrides(data) == (override, lasting)
    limiter = limiter_of()
    limiter.clients.override("api", ACME, "7/minute")
    assert limiter.store.read_record("overrides") == dump_overrides(limiter.clients.overrides())


BAD_BODIES = {
    "a field of a later version": b'[{"rule":"api","key":"{user=acme}","limits":"7/minute","note":"x"}]',
    "a part of a later version": b'[{"rule":"","key":"","limits":"","by":["ip in hex"]}]',
    "lists in lists": b"[" * 100_000 + b"]" * 100_000,
    "tables in tables": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "no UTF-8": b"\xff\xfe",
    "no JSON": b"x",
    "nothing": b"",
    "half of a surrogate pair": b'"\\ud800"',
    "a number of many digits": b'[{"rule":"api","key":"","limits":"7/minute","until_us":%s}]' % (b"9" * 5_000),
}


@each("name", BAD_BODIES)
def test_a_record_that_cannot_be_decoded_is_an_error_that_names_the_store(way: Any, name: str) -> None:
    """Whoever wrote it. A later version may have more fields."""
    store = Recording()
    record = dump_overrides([]).removesuffix(b"[]") + BAD_BODIES[name]
    store.states.write_record("overrides", record, None)
    with pytest.raises(ValueError, match="record of overrides is damaged"):
        load_overrides(record)
    limiter = limiter_of(store=store)
    with pytest.raises(StoreError, match=rf"^store {store.name}: .* is damaged"):
        way(limiter.clients).overrides()
    assert limits(limiter) == ["100/minute"]
    way(limiter.clients).clear_overrides()
    assert way(limiter.clients).overrides() == []


@pytest.mark.slow
def test_a_change_without_a_reply_may_be_in_effect(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so. A paused server makes the change when it runs again. A repeated change is the same change."""
    with redis_running(tmp_path) as server:
        url = f"redis://{HOST}:{server.port}"
        first, second = limiter_of(store=url), limiter_of(store=url)
        swap = OwnCall.swap

        async def pause(call: OwnCall, writes: Sequence[Write]) -> Collection[str]:
            server.pause()
            return await swap(call, writes)

        error = pytest.raises(StoreError, match="may be in effect")
        with hurried(first.store, 0.3), monkeypatch.context() as patch, error:
            patch.setattr(OwnCall, "swap", pause)
            way(first.clients).override("api", ACME, "7/minute")
        server.resume()
        learns(second, ["7/minute"])
        way(first.clients).override("api", ACME, "7/minute")
        assert [each.limits for each in second.clients.overrides()] == ["7/minute"]
        way(first).close()
        second.close()


def test_a_change_that_was_not_sent_is_not_in_effect(recording: Recording) -> None:
    limiter = limiter_of(store=recording)
    recording.down = True
    with pytest.raises(StoreError, match=r"^it does not answer$"):
        limiter.clients.override("api", ACME, "7/minute")
