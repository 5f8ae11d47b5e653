"""The number of processes, learned from the store, and their shares of the limits during an outage."""

import atexit
import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked import exit_code
from http_servers import say, served_port
from redis_handles import PATIENT, address
from servers import redis_running, wait_for
from shared_store import RejectingStore, SharedStore

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.decision import Decision, Hit, Limit
from ratelimit_mw.errors import NoRoomError
from ratelimit_mw.limiter.remote import fleet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}


def process(store: str | Store, limits: str = "10/hour", **settings: Any) -> Limiter:
    """The limiter of one of several processes."""
    opened = open_store(store, PATIENT) if isinstance(store, str) else store
    clock = None if isinstance(store, str) else ManualClock(1_000_000.0)
    return Limiter([Rule(name="api", limits=limits)], opened, clock, Settings(rejection_cache=0, **settings))


def size(limiter: Limiter) -> int:
    assert limiter.remote is not None
    return limiter.remote.fleet.size


def announce(limiter: Limiter) -> None:
    """Let the next call announce the process."""
    assert limiter.remote is not None
    limiter.remote.fleet.due_at = 0.0


def test_processes_learn_their_number_from_the_store(url: str, way: Any) -> None:
    """The second announcement of each process shows all of them. A process that is closed no longer counts."""
    limiters = [process(url, "1000/hour") for _ in range(5)]

    def hit(limiter: Limiter) -> None:
        announce(limiter)
        assert way(limiter).hit(WHO)

    for limiter in limiters * 2:
        hit(limiter)
    assert [size(limiter) for limiter in limiters] == [5] * 5
    way(limiters[0]).close()
    hit(limiters[1])
    assert size(limiters[1]) == 4
    hit(limiters[0])
    assert size(limiters[0]) == 5, "a limiter that was closed can be used again"
    for limiter in limiters:
        way(limiter).close()


class WatchedStore(SharedStore):
    """A store that notes the hits of each call, and has no slots if it ``lacks_slots``."""

    lacks_slots = False

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Sequence[Hit]] = []

    def check(self, limit: Limit) -> None:
        if self.lacks_slots and limit.quota.concurrent:
            raise ConfigError("this store has no slots")

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self.seen.append(hits)
        return super().apply(hits, now, consume)

    @property
    def announcements(self) -> int:
        return sum(hit.limit is fleet.FLEET for hits in self.seen for hit in hits)


class FullStore(SharedStore):
    """A store that has no room for an announcement."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if any(hit.limit is fleet.FLEET for hit in hits):
            raise NoRoomError("it is full")
        return super().apply(hits, now, consume)


def test_a_call_is_made_again_without_an_announcement_that_has_no_room(way: Any) -> None:
    """Known keys still count in a full LMDB, and each request may carry the announcement."""
    limiter, found = process(FullStore(), "2/hour"), []
    for _ in range(3):
        announce(limiter)
        found += [(each.allowed, each.local) for each in way(limiter).hit(WHO).decisions]
    assert found == [(True, False), (True, False), (False, False)]


def test_an_announcement_is_one_more_hit_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due with the next call, and then at intervals that double up to 30 s. No verdict contains it."""
    store = WatchedStore()
    now = 100.0
    for module in "fleet", "store":
        monkeypatch.setattr(f"ratelimit_mw.limiter.remote.{module}.monotonic", lambda: now)
    limiter = process(store, "1000000/hour")
    counts = []
    for moment in (100.0, 100.2, 100.25, 100.75, 101.5, *range(102, 400)):
        now = float(moment)
        for _ in range(3):
            assert len(limiter.hit(WHO).decisions) == 1
        counts.append(store.announcements)
    assert counts[:5] == [2, 2, 3, 4, 4]
    assert counts[-1] == 17
    assert store.calls == 3 * len(counts)
    limiter.peek(WHO)
    assert store.announcements == 17


def test_a_rejected_call_announces_nothing() -> None:
    """A call consumes all its hits, or none. The process still learns the number."""
    store = WatchedStore()
    first, second = process(store, "1/hour"), process(store, "1/hour")
    assert first.hit(WHO)
    assert not second.hit(WHO)
    assert not first.hit(WHO)
    assert (size(first), size(second)) == (1, 2)
    announce(second)
    assert second.hit({"ip": "192.0.2.1"})
    announce(first)
    assert not first.hit(WHO)
    assert (size(first), size(second)) == (2, 2)
    for limiter in first, second, second:
        limiter.close()
    third = process(store, "1/hour")
    assert third.hit({"ip": "192.0.2.2"})
    assert size(third) == 1


def test_an_announcement_that_was_rejected_shows_no_number() -> None:
    """It has no rest, which would be a fleet of 10,001 processes."""
    limiter = process(RejectingStore())
    assert [limiter.hit(WHO).allowed for _ in range(2)] == [False, False]
    assert size(limiter) == 0


def test_a_number_that_is_given_or_cannot_be_learned_is_not_announced() -> None:
    """A store of your own may have no slots."""
    for lacks_slots, given, expected in (False, {"fleet_size": 3}, 3), (True, {}, 0):
        store = WatchedStore()
        store.lacks_slots = lacks_slots
        limiter = process(store, **given)
        assert limiter.hit(WHO)
        assert (store.announcements, size(limiter)) == (0, expected)


def test_a_test_leaves_nothing_behind_in_the_store_of_the_application(ratelimit_clock: ManualClock) -> None:
    store = WatchedStore()
    assert Limiter([Rule(name="api", limits="10/hour")], store).hit(WHO)
    assert store.announcements == 0


def test_a_forked_child_is_a_process_of_its_own(tmp_path: Path) -> None:
    """A server that loads the application before it forks has one limiter in all workers."""
    url = f"lmdb://{tmp_path}/state"
    limiter = process(url)
    assert limiter.hit(WHO)
    assert exit_code(lambda: limiter.hit(WHO) and size(limiter) == 2) == 0
    announce(limiter)
    assert limiter.hit(WHO)
    assert size(limiter) == 2
    limiter.close()


WORKER = """
import sys
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store
limiters = [Limiter([Rule(name="worker", limits="1000/hour")], open_store(sys.argv[1], 20_000_000)) for _ in range(2)]
assert all(limiter.hit({"ip": "192.0.2.7"}) for limiter in limiters)
print(limiters[1].remote.fleet.size, limiters[0].local_decisions)
"""


def test_a_process_that_ends_no_longer_counts(url: str) -> None:
    """A server that replaces its workers does not close their limiters, and has no larger fleet in the end."""
    for _ in range(2):
        assert subprocess.check_output([sys.executable, "-c", WORKER, url], text=True) == "2 0\n"
    limiter = process(url)
    assert limiter.hit(WHO)
    assert size(limiter) == 1
    limiter.close()


def test_a_store_that_fails_at_the_end_of_a_process_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The announcement expires then."""
    ends: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", lambda function, *given: ends.append(partial(function, *given)))
    store = WatchedStore()
    limiter = process(store)
    assert limiter.hit(WHO)
    store.down = True
    for _ in range(2):
        for end in ends:
            end()
        assert store.calls == 2
    limiter.close()
    del limiter
    gc.collect()
    for end in ends:
        end()


def test_the_number_of_workers_can_be_stated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shared: SharedStore
) -> None:
    """``WEB_CONCURRENCY`` states it where the store was never reached. Without it, each process warns once."""
    shared.down = True
    known = "store SharedStore was never reached, so the number of processes is not known"
    for stated, allowed in {"5": 2, "10": 1, "": 10, "many": 10, "0": 10, "9" * 9: 10}.items():
        monkeypatch.setenv("WEB_CONCURRENCY", stated)
        caplog.clear()
        limiter = process(shared)
        assert sum(limiter.hit(WHO).allowed for _ in range(11)) == allowed, stated
        assert sum(message.startswith(known) for message in caplog.messages) == (allowed == 10), stated


APP = """
import os
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.wsgi import RateLimitMiddleware

rules = [
    Rule(name="login", limits="10/hour", match={{"path": "/login"}}),
    Rule(name="page", limits="1000000/hour", match={{"path": "/"}}),
]
limiter = Limiter(rules, "{url}", settings=Settings(store_timeout=5))

def view(environ, start_response):
    text = f"{{os.getpid()}} {{limiter.remote.fleet.size}}".encode()
    start_response("200 OK", [("Content-Length", str(len(text)))])
    return [text]

app = RateLimitMiddleware(view, limiter=limiter)
"""
REQUEST = "GET {path} HTTP/1.1\nHost: x\nConnection: close\n\n"


def body(response: bytes) -> list[str]:
    """The process of a response, and the number of processes that it has learned."""
    return response.partition(b"\r\n\r\n")[2].decode().split()


@pytest.mark.slow
def test_five_workers_without_redis_allow_ten_and_one_for_each(tmp_path: Path) -> None:
    """They have learned their number from the store."""
    with redis_running(tmp_path) as redis:
        (tmp_path / "application.py").write_text(APP.format(url=address(redis)))
        with served_port(tmp_path / "output", "gunicorn --workers 5 application:app", tmp_path) as port:
            learned: dict[str, str] = {}

            def all_have_learned() -> bool:
                worker, number = body(say(port, REQUEST.format(path="/")))
                learned[worker] = number
                return list(learned.values()) == ["5"] * 5

            wait_for(all_have_learned, "five workers that know of each other")
            redis.kill()
            responses = [say(port, REQUEST.format(path="/login")) for _ in range(150)]
            allowed = [body(response)[0] for response in responses if b" 200 " in response[:20]]
            assert 1 <= len(allowed) <= 15
            assert max(allowed.count(worker) for worker in allowed) == 2
