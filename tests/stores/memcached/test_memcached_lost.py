"""Races that the Memcached store loses to other clients, to a stopped server and to time."""

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from memcached_handles import CLIENT, NOW, PATIENT, address, hit, opened, undo
from memcached_meddling import Meddling
from own_time import hurried
from servers import HOST, Server, memcached_running, wait_for

from ratelimit_mw import StoreError
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Charge, Correction, Limit, name_slots
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import COUNTS_REJECTED, WAYS, limit_of

Opening = Callable[..., Meddling]
MINUTE = 60 * SECOND
RACES = 5


@pytest.fixture
def other(memcached_server: Server) -> Iterator[MemcachedStore]:
    """The store of another client."""
    with opened(memcached_server) as found:
        yield found


@pytest.fixture
def meddled(memcached_server: Server) -> Iterator[Opening]:
    """Opens stores whose writes another client precedes: always, or once."""
    opened_ones: list[Meddling] = []

    def build(meddle: Callable[[], object], once: bool = False) -> Meddling:
        left = iter([True])
        store = Meddling(memcached_server, lambda: next(left, False) and meddle()) if once else None
        opened_ones.append(store or Meddling(memcached_server, meddle, RACES))
        return opened_ones[-1]

    yield build
    for each in opened_ones:
        each.close()


def test_a_call_that_loses_all_races_is_rejected(other: MemcachedStore, meddled: Opening) -> None:
    """The store replied, so it did not fail: the request is rejected with a short retry time and consumes nothing."""
    limit, wide = limit_of("1000000/minute", "gcra"), limit_of("1000000/minute")
    shadow = limit_of("1/minute", shadow=True)
    other.apply([hit(shadow)], NOW)
    store = meddled(lambda: other.apply([hit(limit)], NOW))
    decisions = store.apply([hit(wide), hit(limit), hit(shadow)], NOW)
    assert [(d.allowed, d.remaining) for d in decisions] == [(False, 0)] * 3
    assert all(0 < (d.retry_us or 0) <= MINUTE for d in decisions)
    assert [d.source for d in decisions] == [wide, limit, shadow]
    assert other.apply([hit(wide, 0)], NOW)[0].remaining == 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_lost_a_race_is_rejected_when_the_server_stops(tmp_path: Path, way: str) -> None:
    """A lost race is a reply, so a hit that may count has its slot returned. A call without any reply is an error."""
    limit, slots = limit_of("1000000/minute", "gcra"), limit_of("9 concurrent")
    with memcached_running(tmp_path) as server, opened(server) as other:
        for one in (limit, slots):
            other.apply([hit(one)], NOW)
            meddlings = [lambda: other.apply([hit(one)], NOW), server.pause]  # noqa: B023
            store = Meddling(server, lambda: meddlings.pop(0)() if meddlings else None, races=2)  # noqa: B023
            with closing(WAYS[way](store)) as handle:
                (decision,) = handle.apply(name_slots([hit(one)]), NOW)
                assert (decision.allowed, decision.retry_us, meddlings) == (False, SECOND // 10, [])
                with hurried(store, 0.1), pytest.raises(StoreError, match="did not reply within the time budget"):
                    handle.apply([hit(limit)], NOW)
                server.resume()


def test_a_rejection_keeps_its_times_when_its_count_is_lost(other: MemcachedStore, meddled: Opening) -> None:
    """A log that counts rejections and loses all of its races still has the exact retry time."""
    log, wide = limit_of("2/minute", COUNTS_REJECTED), limit_of("9/minute")
    other.apply([hit(log, 2)], NOW)
    store = meddled(lambda: other.apply([hit(log)], NOW))
    rejected, looked = store.apply([hit(log), hit(wide)], NOW)
    assert (rejected.allowed, rejected.retry_us) == (False, MINUTE)
    assert (looked.allowed, looked.remaining) == (True, 9)


class Busy:
    """Another client that hits the key of a limit before each write of a store, until it ``rests``."""

    def __init__(self, other: MemcachedStore, limit: Limit) -> None:
        self.other, self.hit, self.rests = other, hit(limit), False
        self.hits = 0

    def __call__(self) -> None:
        if not self.rests:
            self.hits += self.other.apply([self.hit], NOW)[0].allowed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "returned"), [("refund", 5), ("charge", -7), ("slot", 5), ("closed", 5)])
def test_corrections_that_lose_all_races_are_made_later(
    other: MemcachedStore, meddled: Opening, way: str, kind: str, returned: int
) -> None:
    """The store tries again until no other client is faster, once at its end, and each correction is made once."""
    limit = limit_of("10000 concurrent" if kind == "slot" else "10000/minute")
    (decision,) = other.apply([hit(limit, 5)], NOW)
    store = meddled(busy := Busy(other, limit))
    with closing(WAYS[way](store)) as handle:
        change = Correction(limit, hit(limit).key, 7, None) if kind == "charge" else undo(hit(limit, 5), decision)
        assert handle.correct([change], NOW) == [NOW]
        busy.rests = True
        is_made = lambda: other.apply([hit(limit, 0)], NOW)[0].remaining == 10_000 - 5 - busy.hits + returned  # noqa: E731
        if kind != "closed":
            wait_for(is_made, "the correction")
    assert is_made()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_correction_whose_read_has_no_reply_is_made_later(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cannot have made it. The store tries again while the server is stopped, and afterwards."""
    limit = limit_of("10/minute")
    with memcached_running(tmp_path) as server, opened(server) as store, closing(WAYS[way](store)) as handle:
        (decision,) = store.apply([hit(limit, 5)], NOW)
        connect, tries = socket.socket.connect, list[object]()
        server.pause()
        with hurried(store, 0.1):
            with pytest.raises(StoreError, match="did not reply within the time budget"):
                handle.correct([undo(hit(limit, 5), decision)], NOW)
            monkeypatch.setattr(socket.socket, "connect", lambda *ends: tries.append(ends) or connect(*ends))
            wait_for(lambda: len(tries) > 1, "a try that has failed, and another one")
        server.resume()
        wait_for(lambda: store.apply([hit(limit, 0)], NOW)[0].remaining == 10, "the correction")


@pytest.mark.parametrize("way", WAYS)
def test_the_other_limits_of_a_lost_race_are_refunded_later(other: MemcachedStore, meddled: Opening, way: str) -> None:
    """A request that is rejected because it lost its races keeps no slot, even when its refund loses races too."""
    slots, raced = limit_of("9 concurrent"), limit_of("1000000/minute", "gcra")
    rests = [False]

    def meddle() -> None:
        if not rests[0]:
            other.apply([hit(raced)], NOW)
            (taken,) = other.apply([hit(slots)], NOW)
            other.correct([undo(hit(slots), taken)], NOW)

    other.apply([hit(slots)], NOW)
    store = meddled(meddle)
    with closing(WAYS[way](store)) as handle:
        assert not handle.apply(name_slots([hit(slots), hit(raced)]), NOW)[0].allowed
        rests[0] = True
        wait_for(lambda: other.apply([hit(slots, 0)], NOW)[0].remaining == 8, "the refund")


@pytest.mark.parametrize("way", WAYS)
def test_each_key_of_a_correction_has_its_own_time(other: MemcachedStore, meddled: Opening, way: str) -> None:
    """A key that lost a race is charged later than the others, and each charge can be refunded."""
    wide, raced = limit_of("100/minute", "sliding-window-log"), limit_of("1000/hour", "sliding-window-log")
    times = itertools.count(NOW, SECOND)
    other.apply([hit(raced)], NOW)
    store = meddled(lambda: other.apply([hit(raced)], NOW), once=True)
    store.clock = lambda: next(times)
    with closing(WAYS[way](store)) as handle:
        charges = [Correction(limit, hit(limit).key, 5, None) for limit in (wide, raced)]
        at = handle.correct(charges)
        assert at == [NOW, NOW + SECOND]
        handle.correct([c._replace(consumed=Charge(each, 5)) for c, each in zip(charges, at, strict=True)])
    decisions = other.apply([hit(wide, 0), hit(raced, 0)], NOW + MINUTE // 2)
    assert [d.remaining for d in decisions] == [100, 998]


def test_a_hit_during_a_reset_is_counted_after_it(other: MemcachedStore, meddled: Opening) -> None:
    """Nothing that other clients have counted before stays."""
    limit = limit_of("5/day", "tiered-window")

    def meddle() -> None:
        other.apply([hit(limit, 3)], NOW)
        other.forget([limit.prefix + CLIENT])

    assert meddled(meddle, once=True).apply([hit(limit)], NOW)[0].remaining == 4
    assert other.apply([hit(limit, 0)], NOW)[0].remaining == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spec", ["fixed-window", "tiered-window"])
def test_a_hit_after_a_look_at_its_key_is_undone_once(
    other: MemcachedStore, meddled: Opening, way: str, spec: str
) -> None:
    """A request whose outcome decides whether it counts also looks at the key without its cost."""
    limit, raced = limit_of("9/minute", spec), limit_of("1000/minute", "gcra")
    other.apply([hit(limit, 5)], NOW)
    with closing(WAYS[way](meddled(lambda: other.apply([hit(raced)], NOW), once=True))) as handle:
        assert [d.remaining for d in handle.apply([hit(limit, 0), hit(limit), hit(raced)], NOW)] == [4, 3, 998]
    assert other.apply([hit(limit, 0)], NOW)[0].remaining == 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spec", ["gcra", "tiered-window"])
@pytest.mark.parametrize("once", [True, False])
def test_a_lost_race_of_a_shadow_limit_rejects_nothing(
    other: MemcachedStore, meddled: Opening, way: str, spec: str, once: bool
) -> None:
    """The other limits keep their decisions. The shadow limit is decided again, alone, while there is time."""
    amount = 2 if spec == "tiered-window" else 1_000_000
    limit, shadow = limit_of("9/minute"), limit_of(f"{amount}/minute", spec, shadow=True)
    other.apply([hit(shadow)], NOW)
    with closing(WAYS[way](meddled(lambda: other.apply([hit(shadow)], NOW), once))) as handle:
        handle.apply([hit(limit, 0)], NOW)
        for remaining in (8, 7):
            decisions = handle.apply([hit(shadow), hit(limit), hit(shadow, 0)], NOW)
            assert [d.source for d in decisions] == [shadow, limit, shadow]
            assert (decisions[1].allowed, decisions[1].remaining) == (True, remaining)
    counted = amount - other.apply([hit(shadow, 0)], NOW)[0].remaining
    assert counted == (2 if amount == 2 else 4) if once else counted > 1


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


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_full_server_has_failed(tmp_path: Path, way: str) -> None:
    """A server that is full and does not evict replies to ``version``, but it cannot count a hit.

    No value expires and no memory moves during the test.
    """
    still = ("-o", "no_lru_maintainer,no_lru_crawler,no_slab_reassign")
    with memcached_running(tmp_path, "-M", "-m", "2", *still) as server:
        fill(server)
        handle = WAYS[way](MemcachedStore(address(server), PATIENT))
        for call in (handle.ping, lambda: handle.apply([hit(limit_of("5/day", "gcra"))], NOW)):
            with pytest.raises(StoreError, match="out of memory"):
                call()
        handle.close()
