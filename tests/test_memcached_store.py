"""What the Memcached store leaves in a server, and what it makes of what it finds there."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import (
    CLIENT,
    NOW,
    PATIENT,
    address,
    ask,
    closing,
    commands,
    hit,
    names_in,
    opened,
    stop,
    undo,
    value_of,
)
from servers import Server, memcached_running
from test_memcached_protocol import LEGAL

from ratelimit_mw import Limiter, Quota, Rule, StoreError
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Change, Decision, Spent
from ratelimit_mw.limit import Limit
from ratelimit_mw.stores.memcached import MemcachedStore
from ratelimit_mw.stores.memcached.protocol import Trip
from ratelimit_mw.testing.answers import answers
from ratelimit_mw.testing.model import Model
from ratelimit_mw.testing.store_deciding import HOSTILE
from ratelimit_mw.testing.suite import COUNTS_REFUSED, WAYS, StoreSuite, label, limit_of

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
LOGS = ["sliding-window-log", COUNTS_REFUSED]


@pytest.fixture
def store(memcached_server: Server) -> Iterator[MemcachedStore]:
    with opened(memcached_server) as found:
        yield found


def rule_of(limit: Limit) -> str:
    return f"|{limit.rule}|"


# -- names -----------------------------------------------------------------------------------------------------


def test_everything_in_the_server_has_a_legal_name_and_an_end(memcached_server: Server) -> None:
    """Whatever the clients are called, and under every algorithm: nothing stays for ever."""
    limits = [limit_of("500/minute", spec) for spec in StoreSuite.algorithms]
    with opened(memcached_server, query="?prefix=legal:") as store:
        for limit in limits:
            for text in HOSTILE:
                store.apply([hit(limit, client=text)], NOW)
            for i in range(200):
                store.apply([hit(limit)], NOW + i)
            store.forget([limit.prefix + CLIENT])
    found = names_in(memcached_server, "legal:")
    assert len(found) > len(limits) * len(HOSTILE)
    assert all(LEGAL.fullmatch(name) and name.startswith(b"legal:") for name in found)
    assert min(found.values()) > time.time()


def test_two_prefixes_are_two_worlds(memcached_server: Server) -> None:
    """Applications that share a server do not share their limits."""
    limit = limit_of("1/minute")
    with opened(memcached_server, query="?prefix=a:") as one, opened(memcached_server, query="?prefix=b:") as other:
        assert one.apply([hit(limit)], NOW)[0].allowed
        assert other.apply([hit(limit)], NOW)[0].allowed
        assert not one.apply([hit(limit)], NOW)[0].allowed


@pytest.mark.parametrize(("quota", "seconds"), [("5/minute", 60), ("1/29d", 29 * 86_400), ("1/366d", 366 * 86_400)])
def test_a_state_goes_some_seconds_after_it_stopped_to_matter(
    memcached_server: Server, store: MemcachedStore, quota: str, seconds: int
) -> None:
    """Not before, and not much later, on both sides of the thirty days beyond which an expiry is a date."""
    limit = limit_of(quota, "gcra")
    store.apply([hit(limit, cost=limit.limit)])
    (ends,) = names_in(memcached_server, rule_of(limit)).values()
    assert time.time() + seconds - 1 <= ends <= time.time() + seconds + 4


# -- small states ----------------------------------------------------------------------------------------------


def test_a_small_state_is_one_value(memcached_server: Server, store: MemcachedStore) -> None:
    """As its algorithm dumps it."""
    limit = limit_of("5/minute", "gcra")
    store.apply([hit(limit, cost=3)], NOW)
    (name,) = names_in(memcached_server, rule_of(limit))
    assert value_of(memcached_server, name) == limit.algorithm.dump((NOW, 3, 0))


def test_what_was_given_back_whole_leaves_nothing(memcached_server: Server, store: MemcachedStore) -> None:
    """A fresh key takes no room."""
    limits = [limit_of("5/minute", spec) for spec in ("fixed-window", "gcra", "sliding-window-log")]
    for limit in limits:
        (decision,) = store.apply([hit(limit)], NOW)
        store.correct([undo(hit(limit), decision)], NOW)
        assert value_of(memcached_server, next(iter(names_in(memcached_server, rule_of(limit))), b"-")) == b""


def test_a_request_takes_two_round_trips_and_a_refused_one_takes_one(memcached_server: Server) -> None:
    """However many limits it has: everything is read at once, and written at once."""
    limits = [limit_of("2/minute", spec) for spec in ("fixed-window", "gcra", "sliding-window-log", "token-bucket")]
    with opened(memcached_server) as store:
        trips = counted(store)
        for expected in (2, 2, 1):
            trips.clear()
            store.apply([hit(limit) for limit in limits], NOW)
            assert len(trips) == expected


def counted(store: MemcachedStore) -> list[Any]:
    """A list that has an entry for each round trip of the store from now on."""
    trips: list[Any] = []
    exchange = store._sockets.exchange

    def counting(*arguments: Any) -> None:
        trips.append(arguments[0])
        exchange(*arguments)

    store._sockets.exchange = counting  # type: ignore[method-assign]
    return trips


@pytest.mark.parametrize("value", [b"nonsense", b"1:2", b"\x80\x81"])
@pytest.mark.parametrize("spec", ["gcra", "sliding-window-log", "tiered-window"])
def test_what_is_no_state_is_an_error_of_the_store(
    memcached_server: Server, store: MemcachedStore, spec: str, value: bytes
) -> None:
    """Somebody else wrote under our name: it neither passes for a fresh key nor goes up as a stranger's exception."""
    limit = limit_of("5/hour", spec)
    store.apply([hit(limit)], NOW)
    for name in names_in(memcached_server, rule_of(limit)):
        ask(memcached_server, b"set %b 0 60 %d\r\n%b" % (name, len(value), value), b"STORED")
    with pytest.raises(StoreError, match="Memcached"):
        store.apply([hit(limit)], NOW)
    with pytest.raises(StoreError, match="Memcached"):
        asyncio.run(closing(store, store.aapply([hit(limit)], NOW)))


def test_a_server_that_has_no_room_is_an_error_of_the_store(tmp_path: Any) -> None:
    """With -M it refuses to store rather than to forget, and a hit that was not counted is not allowed."""
    with memcached_running(tmp_path, "-M", "-m", "2") as server, opened(server) as store:
        limit = limit_of("5/day", "gcra")
        with pytest.raises(StoreError, match="out of memory"):
            fill(store, limit)


def fill(store: MemcachedStore, limit: Limit) -> None:
    for i in range(100_000):
        store.apply([hit(limit, client=f"{i}" + "x" * 150)], NOW)


# -- tiered windows --------------------------------------------------------------------------------------------


def test_a_tiered_hit_counts_in_every_tier_until_its_block_is_out_of_sight(
    memcached_server: Server, store: MemcachedStore
) -> None:
    """A counter lives for a period from the end of its block on, and never only a part of it."""
    limit = limit_of("1000/day", {"name": "tiered-window", "precision": "1s"})
    store.apply([hit(limit, cost=3)])
    found = names_in(memcached_server, rule_of(limit))
    lives = sorted(round(ends - time.time()) for ends in found.values())
    for life, block in zip(lives, (1, 60, 3600), strict=True):
        assert 86_400 + block <= life + 1 <= 86_400 + block + 4
    assert {int(value_of(memcached_server, name)) for name in found} == {3}


def test_a_tiered_window_is_read_at_most_twice(memcached_server: Server) -> None:
    """When it fits: before and after counting, 143 counters each. A refusal: once, and for its moment twice more."""
    limit = limit_of("3/day", {"name": "tiered-window", "precision": "1s"})
    with opened(memcached_server) as store:
        trips = counted(store)
        for now in (NOW, NOW + 30 * MINUTE, NOW + 300 * MINUTE):
            trips.clear()
            assert store.apply([hit(limit)], now)[0].allowed
            assert len(trips) == 2
        before = commands(memcached_server)["get"]
        trips.clear()
        assert not store.apply([hit(limit)], NOW + 301 * MINUTE)[0].allowed
        assert len(trips) == 3
        assert commands(memcached_server)["get"] - before <= 1 + 143 + 60 * 2 * 2


def test_forgetting_a_tiered_window_is_seen_by_all_and_again(memcached_server: Server) -> None:
    """Its counters are too many to name, so others count from then on; whoever knew the old ones learns of it."""
    limit = limit_of("5/day", "tiered-window")
    key = limit.prefix + CLIENT
    with opened(memcached_server) as one, opened(memcached_server) as other:
        for _ in range(3):
            assert [store.apply([hit(limit)], NOW)[0].remaining for store in (one, other)] == [4, 3]
            one.forget([key])
        assert other.apply([hit(limit, cost=0)], NOW)[0].remaining == 5


def test_clocks_that_differ_by_less_than_a_block_admit_no_more(memcached_server: Server) -> None:
    """A hit that a faster clock has counted ahead of now counts now."""
    limit = limit_of("10/minute", "tiered-window")
    with opened(memcached_server) as store:
        passed = 0
        for i in range(40):
            passed += store.apply([hit(limit)], NOW + (i % 2) * SECOND)[0].allowed
        assert passed == 10


@pytest.mark.parametrize("seed", range(3))
def test_a_tiered_window_of_four_tiers_is_the_pure_function(memcached_server: Server, seed: int) -> None:
    """Weeks by the second: refusals and looks say the exact microsecond, through blocks of seconds up to days."""
    chance = random.Random(seed)
    limit = limit_of("300/40d", {"name": "tiered-window", "precision": "1s"})
    model, now = Model(), NOW
    with opened(memcached_server) as store:
        for _ in range(250):
            cost = chance.choice((0, 1, 1, 20, 60, 299))
            expected = model.apply([hit(limit, cost)], now)
            assert answers(store.apply([hit(limit, cost)], now)) == answers(expected)
            now += chance.choice((0, 1, 30 * SECOND, 10 * MINUTE, 50 * MINUTE, 7 * 60 * MINUTE, 3 * DAY, 11 * DAY))
            if chance.random() < 0.3 and (waits := [d.retry_us for d in expected if d.retry_us]):
                now += waits[0] - chance.choice((0, 1))


# -- logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", LOGS, ids=label)
@pytest.mark.parametrize("seed", range(2))
def test_a_log_in_chunks_is_the_pure_function(memcached_server: Server, spec: Any, seed: int) -> None:
    """Two thousand hits through sealed chunks that leave one by one, with refunds from old ones and a clock that
    goes back: every answer equal to the microsecond."""
    chance = random.Random(seed)
    limit = limit_of("700/minute", spec)
    model, now, latest = Model(), NOW, NOW
    spent: list[Change] = []
    with opened(memcached_server) as store:
        for _ in range(2_000):
            cost = chance.choice((0, 1, 1, 1, 1, 2, 3))
            expected = model.apply([hit(limit, cost)], now)
            assert answers(store.apply([hit(limit, cost)], now)) == answers(expected)
            if expected[0].allowed and cost:
                spent.append(undo(hit(limit, cost), expected[0]))
            if spent and chance.random() < 0.05:
                back = spent.pop(chance.randrange(max(0, len(spent) - 500), len(spent)))
                changes = [back, Change(limit, back.key, 1, None)] if chance.random() < 0.5 else [back]
                model.correct(changes, now)
                assert store.correct(changes, now) == [now] * len(changes)
            latest = max(latest, now)
            now += chance.choice((0, 1, 10_000, 40_000, 100_000, 300_000))
            if chance.random() < 0.02:
                now = max(now - 2 * SECOND, latest - 5 * SECOND)
            if chance.random() < 0.005:
                now += 35 * SECOND


@pytest.mark.parametrize("spec", LOGS, ids=label)
def test_no_hit_rewrites_the_log(memcached_server: Server, store: MemcachedStore, spec: Any) -> None:
    """With 10,000 hits in it, one more writes some kilobytes, where the whole log would be 160."""
    limit = limit_of("10000/day", spec)
    trips = counted(store)
    sizes = []
    for i in range(10_050):
        trips.clear()
        store.apply([hit(limit)], NOW + i)
        sizes.append(sum(len(payload) for trip in trips for payload in trip.values()))
    assert max(sizes) < 14_000
    assert store.apply([hit(limit, cost=0)], NOW + 20_000)[0].remaining == 0
    assert len(names_in(memcached_server, rule_of(limit))) > 150


def test_a_chunk_that_the_server_forgot_counts_until_its_last_hit_leaves(
    memcached_server: Server, store: MemcachedStore
) -> None:
    """What is lost is detail: nobody gets a hit more for it."""
    limit = limit_of("300/minute", "sliding-window-log")
    for i in range(300):
        assert store.apply([hit(limit)], NOW + i * 1000)[0].allowed
    chunks = [name for name in names_in(memcached_server, rule_of(limit)) if name.startswith(b"rl:c")]
    assert len(chunks) == 3
    for name in chunks:
        ask(memcached_server, b"delete " + name, b"DELETED")
    edge = NOW + MINUTE
    assert store.apply([hit(limit, cost=0)], edge + 62 * 1000)[0].remaining == 0
    assert store.apply([hit(limit, cost=0)], edge + 63 * 1000)[0].remaining == 64
    refused = store.apply([hit(limit, cost=65)], edge + 63 * 1000, spend=False)[0]
    assert store.apply([hit(limit, cost=65)], edge + 63 * 1000 + (refused.retry_us or 0))[0].allowed


# -- races -----------------------------------------------------------------------------------------------------


class Meddling(MemcachedStore):
    """Before each writing of its own, somebody else does something: hits the same key, say."""

    def __init__(self, server: Server, timeout_us: int, meddle: Callable[[], object]) -> None:
        super().__init__(address(server).removeprefix("memcached://"), timeout_us=timeout_us)
        self._meddle = meddle
        exchange = self._sockets.exchange

        def meddled(payloads: Any, *rest: Any) -> None:
            self._look_at(payloads)
            exchange(payloads, *rest)

        self._sockets.exchange = meddled  # type: ignore[method-assign]

    def _look_at(self, payloads: dict[Any, bytes]) -> None:
        if any(payload.startswith((b"cas ", b"add ", b"decr ")) for payload in payloads.values()):
            self._meddle()

    async def _acarry_out(self, step: Any, *rest: Any) -> Any:
        if isinstance(step, list):
            self._look_at(Trip(step, self._ring.place).payloads)
        return await super()._acarry_out(step, *rest)


@pytest.mark.parametrize("slow", [0.0, 0.03])
def test_races_lost_to_the_end_refuse_and_are_no_error(memcached_server: Server, slow: float) -> None:
    """The store answers, so it did not fail: everybody is told to come again soon, and nothing is left spent."""
    limit, wide = limit_of("1000000/minute", "gcra"), limit_of("1000000/minute")
    shadow = limit_of("1/minute", shadow=True)
    with opened(memcached_server) as other:
        other.apply([hit(shadow)], NOW)

        def meddle() -> None:
            other.apply([hit(limit)], NOW)
            time.sleep(slow)

        store = Meddling(memcached_server, 40_000 if slow == 0 else 100_000, meddle)
        hits = [hit(wide), hit(limit), hit(shadow)]
        decisions = store.apply(hits, NOW)
        assert [(d.allowed, d.remaining) for d in decisions] == [(False, 0)] * 3
        assert all(0 < (d.retry_us or 0) <= MINUTE for d in decisions)
        assert [d.bound for d in decisions] == [wide, limit, shadow]
        assert other.apply([hit(wide, 0)], NOW)[0].remaining == 1_000_000
        store.close()


@pytest.mark.parametrize("way", WAYS)
def test_who_has_lost_a_race_is_refused_when_the_server_stops_and_the_next_one_is_told(
    tmp_path: Path, way: str
) -> None:
    """An answer that was lost is an answer; only who gets none at all has an error to handle."""
    limit = limit_of("1000000/minute", "gcra")
    with memcached_running(tmp_path) as server, opened(server) as other:
        meddlings = [lambda: other.apply([hit(limit)], NOW), lambda: stop(server)]
        handle = WAYS[way](Meddling(server, 400_000, lambda: meddlings.pop(0)()))
        (decision,) = handle.apply([hit(limit)], NOW)
        assert (decision.allowed, decision.retry_us, meddlings) == (False, SECOND // 10, [])
        with pytest.raises(StoreError, match="did not answer within its time budget"):
            handle.apply([hit(limit)], NOW)
        server.resume()
        handle.close()


def test_a_refusal_whose_count_is_lost_is_still_that_refusal(memcached_server: Server) -> None:
    """A log that counts refusals and loses all of its races says when to come again as ever."""
    log, wide = limit_of("2/minute", COUNTS_REFUSED), limit_of("9/minute")
    with opened(memcached_server) as other:
        other.apply([hit(log, 2)], NOW)
        store = Meddling(memcached_server, 40_000, lambda: other.apply([hit(log)], NOW))
        refused, looked = store.apply([hit(log), hit(wide)], NOW)
        assert (refused.allowed, refused.retry_us) == (False, MINUTE)
        assert (looked.allowed, looked.remaining) == (True, 9)
        store.close()


def test_corrections_that_lose_all_their_races_are_left_out_with_a_warning(
    memcached_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """What was spent stays spent: that is never too much for anybody. It is no error of the store."""
    limit = limit_of("1000000/minute", "gcra")
    with opened(memcached_server) as other:
        (decision,) = other.apply([hit(limit)], NOW)
        store = Meddling(memcached_server, 40_000, lambda: other.apply([hit(limit)], NOW))
        assert store.correct([undo(hit(limit), decision)], NOW) == [NOW]
        assert "1 corrections lost their races" in caplog.text
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


def test_the_moment_of_a_refusal_is_found_while_others_hit_and_give_back(memcached_server: Server) -> None:
    """Parts that no longer add up to what was read before: the refusal stays one, at a moment in that part."""
    limit = limit_of("100/day", {"name": "tiered-window", "precision": "1s"})
    for change in (30, -30, -60):
        with opened(memcached_server, query=f"?prefix=moment{change}:") as store:
            (decision,) = store.apply([hit(limit, 60)], NOW)
            store.apply([hit(limit, 40)], NOW + 90 * MINUTE)
            change_in_midst(store, Change(limit, hit(limit).key, abs(change), spent_of(decision, change)))
            (refused,) = store.apply([hit(limit, 50)], NOW + 91 * MINUTE)
            assert not refused.allowed
            assert DAY - 91 * MINUTE - SECOND <= (refused.retry_us or 0) <= DAY + 60 * MINUTE


def spent_of(decision: Decision, change: int) -> Spent | None:
    """What a change gives back; None when it charges."""
    return Spent(decision.at_us, 60) if change < 0 else None


def change_in_midst(store: MemcachedStore, change: Change) -> None:
    """Carry a change out right after the next reading of the store."""
    exchange, first = store._sockets.exchange, [True]

    def changing(*arguments: Any) -> None:
        exchange(*arguments)
        if first and first.pop():
            with_other(store, change)

    store._sockets.exchange = changing  # type: ignore[method-assign]


def with_other(store: MemcachedStore, change: Change) -> None:
    other = MemcachedStore(store._ring.servers, store._names._prefix.decode(), PATIENT)
    other.correct([change], NOW)
    other.close()


def test_a_lost_race_is_decided_anew(memcached_server: Server) -> None:
    """Who was slower sees what the other has spent: of the last two one passes."""
    limit = limit_of("3/minute")
    with opened(memcached_server) as other:
        other.apply([hit(limit)], NOW)
        store = Meddling(memcached_server, PATIENT, lambda: other.apply([hit(limit)], NOW))
        (decision,) = store.apply([hit(limit)], NOW)
        assert not decision.allowed
        assert other.apply([hit(limit, 0)], NOW)[0].remaining == 0
        store.close()


def test_a_turn_that_does_not_come_in_time_is_a_refusal(memcached_server: Server) -> None:
    """Blocking and on a loop: who has lost a race waits for those before it, and no longer than its call may take."""
    limit = limit_of("100/minute")
    with opened(memcached_server) as other:
        store = Meddling(memcached_server, 60_000, lambda: other.apply([hit(limit)], NOW))
        for turn in store._turns:
            turn.acquire()
        (decision,) = store.apply([hit(limit)], NOW)
        assert (decision.allowed, decision.remaining) == (False, 0)
        store.close()


# -- processes and loops ---------------------------------------------------------------------------------------


def test_a_forked_worker_has_connections_of_its_own(memcached_server: Server) -> None:
    """The parent opened one before the fork; neither reads the other's answers."""
    limit = limit_of("100000/minute")
    with opened(memcached_server) as store:
        store.apply([hit(limit)], NOW)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if all(store.apply([hit(limit)], NOW)[0].allowed for _ in range(300)) else 2
            finally:
                os._exit(code)
        assert all(store.apply([hit(limit)], NOW)[0].allowed for _ in range(300))
        assert os.waitpid(child, 0)[1] == 0
        assert store.apply([hit(limit, 0)], NOW)[0].remaining == 100_000 - 601


def test_each_event_loop_has_a_connection_of_its_own(memcached_server: Server) -> None:
    """One limiter may serve several loops, one after the other; loops that ended are let go."""
    limiter = Limiter([Rule(name=f"loops-{time.time_ns()}", limits="100/minute")], store=address(memcached_server))

    async def three() -> list[bool]:
        found = [(await limiter.ahit({"ip": "192.0.2.7"})).allowed for _ in range(3)]
        await limiter.aclose()
        return found

    assert [asyncio.run(three()) for _ in range(3)] == [[True] * 3] * 3
    assert limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 91
    limiter.close()


def test_a_task_that_is_cancelled_confuses_nobody(memcached_server: Server) -> None:
    """Its answer comes all the same and is read over; the next one on that connection is its owner's."""
    limit = limit_of("1000/minute")

    async def scenario(store: MemcachedStore) -> list[int]:
        await store.aapply([hit(limit)], NOW)
        for i in range(20):
            task = asyncio.ensure_future(store.aapply([hit(limit, client=f"c{i}")], NOW))
            await asyncio.sleep(0)
            task.cancel()
        found = [(await store.aapply([hit(limit)], NOW))[0].remaining for _ in range(5)]
        await store.aclose()
        return found

    with opened(memcached_server) as store:
        assert asyncio.run(scenario(store)) == [998, 997, 996, 995, 994]


def test_many_servers_hold_one_limiters_keys(
    tmp_path_factory: pytest.TempPathFactory, memcached_server: Server
) -> None:
    """Blocking and awaiting calls, and limiters that name the servers in another order, find the same ones."""
    with memcached_running(tmp_path_factory.mktemp("second")) as second:
        limits = [limit_of("4/minute", spec) for spec in StoreSuite.algorithms]
        with opened(memcached_server, second) as one, opened(second, memcached_server) as other:
            for i in range(20):
                hits = [hit(limit, client=f"c{i}") for limit in limits]
                assert one.apply(hits, NOW)[0].allowed
                assert asyncio.run(closing(other, other.aapply(hits, NOW)))[0].allowed
                assert [d.remaining for d in other.apply(hits, NOW)] == [1] * len(limits)
                assert [d.remaining for d in asyncio.run(closing(one, one.aapply(hits, NOW)))] == [0] * len(limits)
        shares = [len(names_in(server, rule_of(limits[0]))) for server in (memcached_server, second)]
        assert sum(shares) == 20
        assert min(shares) >= 3


def test_a_custom_prefix_reaches_the_store_from_an_address(memcached_server: Server) -> None:
    """As in the settings of two applications on one server."""
    name = f"app-{time.time_ns()}"
    limiter = Limiter([Rule(name=name, limits="2/minute")], store=address(memcached_server, query="?prefix=shop:"))
    limiter.hit({"ip": "192.0.2.7"})
    limiter.close()
    (found,) = names_in(memcached_server, name)
    assert found.startswith(b"shop::1|")
    assert Quota.parse("2/minute").amount == 2
