"""Races that the Memcached store loses: to others, to a server that stops, to time."""

import itertools
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import CLIENT, NOW, PATIENT, address, hit, opened, stop, undo
from memcached_meddling import Meddling
from servers import HOST, Server, memcached_running

from ratelimit_mw import StoreError
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Charge, Correction, Decision
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import COUNTS_REJECTED, WAYS, limit_of

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


@pytest.mark.parametrize("slow", [0.0, 0.03])
def test_races_lost_to_the_end_reject_and_are_no_error(memcached_server: Server, slow: float) -> None:
    """The store answers, so it did not fail: everybody is told to come again soon, and nothing is left consumed."""
    limit, wide = limit_of("1000000/minute", "gcra"), limit_of("1000000/minute")
    shadow = limit_of("1/minute", shadow=True)
    with opened(memcached_server) as other:
        other.apply([hit(shadow)], NOW)

        def meddle() -> None:
            other.apply([hit(limit)], NOW)
            time.sleep(slow)

        store = Meddling(memcached_server, 600_000, meddle)
        hits = [hit(wide), hit(limit), hit(shadow)]
        decisions = store.apply(hits, NOW)
        assert [(d.allowed, d.remaining) for d in decisions] == [(False, 0)] * 3
        assert all(0 < (d.retry_us or 0) <= MINUTE for d in decisions)
        assert [d.source for d in decisions] == [wide, limit, shadow]
        assert other.apply([hit(wide, 0)], NOW)[0].remaining == 1_000_000
        store.close()


@pytest.mark.parametrize("way", WAYS)
def test_who_has_lost_a_race_is_rejected_when_the_server_stops_and_the_next_one_is_told(
    tmp_path: Path, way: str
) -> None:
    """An answer that was lost is an answer; only who gets none at all has an error to handle."""
    limit = limit_of("1000000/minute", "gcra")
    with memcached_running(tmp_path) as server, opened(server) as other:
        meddlings = [lambda: other.apply([hit(limit)], NOW), lambda: stop(server)]
        handle = WAYS[way](Meddling(server, 400_000, lambda: meddlings.pop(0)()))
        (decision,) = handle.apply([hit(limit)], NOW)
        assert (decision.allowed, decision.retry_us, meddlings) == (False, SECOND // 10, [])
        with pytest.raises(StoreError, match="did not reply within the time budget"):
            handle.apply([hit(limit)], NOW)
        server.resume()
        handle.close()


def test_a_rejection_whose_count_is_lost_is_still_that_rejection(memcached_server: Server) -> None:
    """A log that counts rejections and loses all of its races says when to come again as ever."""
    log, wide = limit_of("2/minute", COUNTS_REJECTED), limit_of("9/minute")
    with opened(memcached_server) as other:
        other.apply([hit(log, 2)], NOW)
        store = Meddling(memcached_server, 600_000, lambda: other.apply([hit(log)], NOW))
        rejected, looked = store.apply([hit(log), hit(wide)], NOW)
        assert (rejected.allowed, rejected.retry_us) == (False, MINUTE)
        assert (looked.allowed, looked.remaining) == (True, 9)
        store.close()


def test_corrections_that_lose_all_their_races_are_left_out_with_a_warning(
    memcached_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """What was consumed stays consumed: that is never too much for anybody. It is no error of the store."""
    limit = limit_of("1000000/minute", "gcra")
    with opened(memcached_server) as other:
        (decision,) = other.apply([hit(limit)], NOW)
        store = Meddling(memcached_server, 600_000, lambda: other.apply([hit(limit)], NOW))
        assert store.correct([undo(hit(limit), decision)], NOW) == [NOW]
        assert "other clients changed 1 keys all the time" in caplog.text
        store.close()


def test_a_key_that_is_forgotten_while_it_is_hit_is_hit_again(memcached_server: Server) -> None:
    """What was counted under names that no longer count is counted anew."""
    limit = limit_of("5/day", "tiered-window")
    with opened(memcached_server) as other:
        left = [1]

        def meddle() -> None:
            if left and left.pop():
                other.apply([hit(limit, 3)], NOW)
                other.forget([limit.prefix + CLIENT])

        store = Meddling(memcached_server, PATIENT, meddle)
        assert store.apply([hit(limit)], NOW)[0].remaining == 4
        assert other.apply([hit(limit, 0)], NOW)[0].remaining == 4
        store.close()


def test_the_moment_of_a_rejection_is_found_while_others_hit_and_give_back(memcached_server: Server) -> None:
    """Parts that no longer add up to what was read before: the rejection stays one, at a moment in that part."""
    limit = limit_of("100/day", {"name": "tiered-window", "precision": "1s"})
    for change in (30, -30, -60):
        with opened(memcached_server, query=f"?prefix=moment{change}:") as store:
            (decision,) = store.apply([hit(limit, 60)], NOW)
            store.apply([hit(limit, 40)], NOW + 90 * MINUTE)
            change_in_midst(store, Correction(limit, hit(limit).key, abs(change), consumed_of(decision, change)))
            (rejected,) = store.apply([hit(limit, 50)], NOW + 91 * MINUTE)
            assert not rejected.allowed
            assert DAY - 91 * MINUTE - SECOND <= (rejected.retry_us or 0) <= DAY + 60 * MINUTE


def consumed_of(decision: Decision, change: int) -> Charge | None:
    """What a change gives back; None when it charges."""
    return Charge(decision.at_us, 60) if change < 0 else None


def change_in_midst(store: MemcachedStore, change: Correction) -> None:
    """Carry a change out right after the next reading of the store."""
    exchange, first = store._pool.exchange, [True]

    def changing(*arguments: Any) -> None:
        exchange(*arguments)
        if first and first.pop():
            with_other(store, change)

    store._pool.exchange = changing  # type: ignore[method-assign]


def with_other(store: MemcachedStore, change: Correction) -> None:
    other = MemcachedStore(store._rendezvous.servers, store._names._prefix.decode(), PATIENT)
    other.correct([change], NOW)
    other.close()


def test_a_lost_race_is_decided_anew(memcached_server: Server) -> None:
    """Who was slower sees what the other has consumed: of the last two one passes."""
    limit = limit_of("3/minute")
    with opened(memcached_server) as other:
        other.apply([hit(limit)], NOW)
        store = Meddling(memcached_server, PATIENT, lambda: other.apply([hit(limit)], NOW))
        (decision,) = store.apply([hit(limit)], NOW)
        assert not decision.allowed
        assert other.apply([hit(limit, 0)], NOW)[0].remaining == 0
        store.close()


def test_a_turn_that_does_not_come_in_time_is_a_rejection(memcached_server: Server) -> None:
    """Blocking and on a loop: who has lost a race waits for those before it, and no longer than its call may take."""
    limit = limit_of("100/minute")
    with opened(memcached_server) as other:
        store = Meddling(memcached_server, 600_000, lambda: other.apply([hit(limit)], NOW))
        for turn in store._locks:
            turn.acquire()
        (decision,) = store.apply([hit(limit)], NOW)
        assert (decision.allowed, decision.remaining) == (False, 0)
        store.close()


def fill(server: Server) -> None:
    """Write values until the server has no room for any size."""
    with socket.create_connection((HOST, server.port)) as connection, connection.makefile("rb") as replies:
        for size in (400_000, 10_000, 1_000, 400, 200, 150, 100, 60, 40, 20, 1):
            for batch in itertools.count():
                sets = [b"set fill%d-%d-%d 0 0 %d\r\n%b\r\n" % (size, batch, i, size, b"x" * size) for i in range(20)]
                connection.sendall(b"".join(sets))
                stored = [replies.readline() for _ in sets]
                if b"STORED\r\n" not in stored:
                    break


@pytest.mark.parametrize("way", WAYS)
def test_a_full_server_does_not_reply_to_a_ping(tmp_path: Path, way: str) -> None:
    """A server that is full and does not evict replies to ``version``, but it cannot count a hit.

    No value expires and no memory moves during the test.
    """
    still = ("-o", "no_lru_maintainer,no_lru_crawler,no_slab_reassign")
    with memcached_running(tmp_path, "-M", "-m", "2", *still) as server:
        fill(server)
        handle = WAYS[way](MemcachedStore(address(server).removeprefix("memcached://"), timeout_us=PATIENT))
        with pytest.raises(StoreError, match="Memcached"):
            handle.ping()
        handle.close()
