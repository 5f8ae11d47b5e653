"""Slots whose request ended during an outage, or whose decision never arrived: they are returned after it.

Each slot has an id that its client chose.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import address as memcached_address
from own_time import hurried
from redis_handles import PATIENT, address
from servers import memcached_running, redis_running, wait_for
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Charge, Correction, Decision, Hit, Receipt, SlotCost, name_slots
from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limiter import slots as held_slots
from ratelimit_mw.stores import Store, open_store

WHO = {"ip": "192.0.2.7"}
RULES = [Rule(name="api", limits="20 concurrent; 100/minute", algorithm="fixed-window")]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try, and the next check, is soon."""
    for name in ("_RETRY_EVERY", "_CHECK_EVERY"):
        monkeypatch.setattr(held_slots, name, 0.01)


class SilentStore(SharedStore):
    """A store that loses its replies to hits while it ``is_silent``. If it ``is_late``, a correction overtakes them."""

    is_silent = False
    is_late = False

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[Sequence[Hit], int | None]] = []
        self.remaining: list[int] = []
        """What late hits have left."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if self.is_late:
            self.late.append((hits, now))
            raise StoreError("it is late")
        decisions = super().apply(hits, now, consume)
        if self.is_silent:
            raise StoreError("its reply is lost")
        return decisions

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        times = super().correct(changes, now)
        while self.late:
            first, *_ = self.states.apply(*self.late.pop())
            self.remaining.append(first.remaining)
        return times


def free(limiter: Limiter) -> int:
    return limiter.peek(WHO, cost=0).decisions[0].remaining


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_slots_of_an_outage_are_returned_after_it(kind: str, tmp_path: Path, way: Any) -> None:
    """The server is paused while five requests end, and one begins: some calls get no reply, others are not sent.

    It carries them out afterwards. Without a return, the slots would end after a minute.
    """
    start, url = {"redis": (redis_running, address), "memcached": (memcached_running, memcached_address)}[kind]
    with start(tmp_path) as server:
        limiter = Limiter(RULES, store := open_store(url(server), PATIENT))
        watcher = Limiter(RULES, open_store(url(server), PATIENT))
        with limiter.slot(WHO):
            verdicts = [way(limiter).hit(WHO) for _ in range(5)]
            for verdict in verdicts:
                limiter.slots.hold(verdict, limiter.rules)
            assert free(watcher) == 14
            server.pause()
            with hurried(store, 0.3):
                assert way(limiter).hit(WHO).decisions[0].local
                for verdict in verdicts:
                    way(limiter).conclude(verdict, 200)
            assert limiter.remote.breaker.open  # type: ignore[union-attr]
            server.resume()
            wait_for(lambda: limiter.peek(WHO) and free(watcher) == 19, "the slots to come back", patience=50)
            wait_for(lambda: not len(limiter.slots.returns), "everything to be answered")
        wait_for(lambda: free(watcher) == 20, "the last slot")
        way(limiter).close()
        watcher.close()


@each("requests", [1, 5])
def test_a_slot_without_a_reply_is_returned(requests: int) -> None:
    """The store has counted the hits, and their replies were lost."""
    store = SilentStore()
    limiter = Limiter(RULES, store)
    kept = limiter.hit(WHO)
    store.is_silent = True
    for _ in range(requests):
        assert limiter.hit(WHO).decisions[0].local
    store.is_silent = False
    wait_for(lambda: not len(limiter.slots.returns), "the lost slots to be returned")
    assert store.states.apply([Hit(*kept.decisions[0].hit[:2], 0)])[0].remaining == 19
    limiter.close()


def test_a_return_of_a_rejected_cost_returns_nothing(store: Store) -> None:
    """No hit has taken as many slots as the limit does not have. Others may have taken some of these."""
    limiter = Limiter(RULES, store)
    limit, key, _ = limiter.hit(WHO).decisions[0].hit
    store.correct([Correction(limit, key, 1 << 53, Charge(1, 1 << 53))])
    assert free(limiter) == 19


def test_a_return_that_overtakes_its_hit_is_repeated() -> None:
    """The first return finds no slot, because the store counts the hit only after it."""
    store = SilentStore()
    limiter = Limiter(RULES, store)
    key = limiter.hit(WHO).decisions[0].hit[:2]
    store.is_late = True
    limiter.hit(WHO)
    store.is_late = False
    wait_for(lambda: not len(limiter.slots.returns), "the second return")
    assert store.remaining == [18]
    assert store.states.apply([Hit(*key, 0)])[0].remaining == 19
    limiter.close()


def test_a_peek_or_an_open_breaker_loses_no_slot(shared: SharedStore) -> None:
    """Nothing was consumed, so nothing is returned."""
    limiter = Limiter(RULES, shared)
    shared.down = True
    limiter.peek(WHO)
    assert not len(limiter.slots.returns)
    for _ in range(5):
        limiter.hit(WHO)
    assert limiter.remote.breaker.open  # type: ignore[union-attr]
    lost = len(limiter.slots.returns)
    limiter.hit(WHO)
    assert len(limiter.slots.returns) == lost
    limiter.close()


def test_ids_of_clients_and_stores_are_kept_apart() -> None:
    """A named slot is released by its id alone, and hits without a name still get one from the store."""
    limit = Limiter(RULES).rules.rules[0].limits[0]
    (first,), (second,) = name_slots([Hit(limit, "k", 2)]), name_slots([Hit(limit, "k", 1)])
    assert isinstance(first.cost, SlotCost)
    now = 1_767_268_820_500_000
    state: Any = None
    for cost in (first.cost, second.cost, 1, 1):
        state, decision = limit.decide(state, now, cost)
        assert decision.allowed
    assert state[::2] == (first.cost.slot, first.cost.slot + 1, second.cost.slot, now, now + 1)  # type: ignore[attr-defined]
    assert {type(number) for number in state} == {int}
    state = limit.algorithm.refund(state, now, Charge(first.cost.slot, 2), 2)
    assert state[::2] == (second.cost.slot, now, now + 1)  # type: ignore[attr-defined]


def renewals_of(monkeypatch: pytest.MonkeyPatch) -> list[Receipt]:
    """Renew slots often. Return a list that gets each receipt whose slots are renewed."""
    found: list[Receipt] = []
    renewals = Receipt.renewals

    def noting(receipt: Receipt) -> list[Correction]:
        found.append(receipt)
        return renewals(receipt)

    monkeypatch.setattr(Receipt, "renewals", noting)
    monkeypatch.setattr(held_slots, "SLOT_LIFE", 30_000)
    return found


def test_a_slot_is_held_at_most_for_the_time_of_its_rule(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request continues without its slots: after an hour by default. Rates and other rules are not changed."""
    elapsed, checks = 0, list[int]()
    monkeypatch.setattr(held_slots, "now_us", lambda: checks.append(elapsed) or 1_767_268_820_000_000 + elapsed)
    renewals = renewals_of(monkeypatch)
    bounded = Rule(name="bounded", limits="2 concurrent; 9/minute", hold_at_most="5m")
    rules = [bounded, Rule(name="default", limits="2 concurrent"), Rule(name="rate", limits="9/hour")]
    limiter = Limiter(rules, store)

    def left() -> list[int]:
        return [decision.remaining for decision in limiter.peek(WHO, cost=0).decisions]

    def wait_for_checks() -> None:
        checks.clear()
        wait_for(lambda: checks.count(elapsed) > 4, "two checks of both slots")

    with limiter.slot(WHO) as verdict:
        assert {rule for _, rule, _ in limiter.slots.hold_ends.items()} == {"bounded", "default"}
        elapsed = 299_999_999
        wait_for_checks()
        assert left() == [1, 8, 1, 8]
        elapsed = 300_000_000
        wait_for(lambda: left() == [2, 8, 1, 8], "the slot to be returned")
        with limiter.slot(WHO):
            assert left() == [1, 7, 0, 7]
            renewals.clear()
        wait_for(lambda: renewals.count(verdict.receipt) > 1, "a renewal that has ended")
        assert left() == [2, 7, 1, 7]
        elapsed = 3_599_999_999
        wait_for_checks()
        assert left() == [2, 7, 1, 7]
        elapsed = 3_600_000_000
        wait_for(lambda: left() == [2, 7, 2, 7], "the slot of the default to be returned")
    assert left() == [2, 7, 2, 7]
    wait_for(lambda: not len(limiter.slots.hold_ends), "the end of all holds")
    limiter.close()


@each("failures", [0, 3])
def test_a_slot_without_a_store_is_returned_later(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """The store is unreachable when the time has passed, and after some failures it is not even asked."""
    shared = SharedStore()
    elapsed = 0
    monkeypatch.setattr(held_slots, "now_us", lambda: 1_767_268_820_000_000 + elapsed)
    renewals = renewals_of(monkeypatch)
    limiter = Limiter([Rule(name="bounded", limits="2 concurrent", hold_at_most=30)], shared)
    with limiter.slot(WHO) as verdict:
        shared.down = True
        for _ in range(failures):
            limiter.peek(WHO)
        elapsed = 30_000_000
        wait_for(lambda: len(limiter.slots.returns) == 1, "the end of the hold")
        shared.down = False
        wait_for(lambda: free(limiter) == 2 and not len(limiter.slots.returns), "the slot to be returned")
        renewals.clear()
        corrections = shared.corrections  # the breaker may probe the store at any time
        wait_for(lambda: renewals.count(verdict.receipt) > 1, "a renewal that has ended")
        assert shared.corrections == corrections, "nothing is left to renew"
    assert free(limiter) == 2
    limiter.close()


def test_a_slot_is_returned_again_until_the_store_replies(shared: SharedStore) -> None:
    """A store that takes the slot back without a reply is asked again. No other slot is freed."""
    limiter = Limiter(RULES, shared)
    verdict = limiter.hit(WHO)
    shared.mute = True
    limiter.conclude(verdict, 200)
    assert limiter.hit(WHO)
    asked = shared.calls
    wait_for(lambda: shared.calls > asked, "another try")
    shared.mute = False
    wait_for(lambda: limiter.peek(WHO) and not len(limiter.slots.returns), "an answer")
    assert shared.states.apply([Hit(*verdict.decisions[0].hit[:2], 0)])[0].remaining == 19
    limiter.close()


def test_a_slot_is_returned_after_the_end_of_its_event_loop(shared: SharedStore) -> None:
    """The event loop cancels the task that would return it."""
    limiter = Limiter(RULES, shared)

    async def scenario() -> None:
        (await limiter.ahit(WHO))["api"].refund()

    asyncio.run(scenario())
    limiter.close()  # at the latest
    assert free(limiter) == 20


def test_an_expired_slot_is_not_returned(monkeypatch: pytest.MonkeyPatch, shared: SharedStore) -> None:
    """After the life of a slot the store is not asked about it again."""
    monkeypatch.setattr(held_slots, "SLOT_LIFE", 0)
    limiter = Limiter(RULES, shared)
    left_over(limiter, shared, 1)
    wait_for(lambda: not len(limiter.slots.returns), "the slot to be given up")
    limiter.close()


def test_a_slot_that_no_thread_can_return_expires(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shared: SharedStore
) -> None:
    """The client of an application makes calls on its event loop only, which has ended. No error is logged."""

    def refuse(*_: Any) -> None:
        raise ConfigError("this store cannot make blocking calls")

    async def scenario() -> None:
        (await limiter.ahit(WHO))["api"].refund()

    monkeypatch.setattr(held_slots, "SLOT_LIFE", 0)
    monkeypatch.setattr(shared, "correct", refuse)
    limiter = Limiter(RULES, shared)
    asyncio.run(scenario())
    wait_for(lambda: not len(limiter.slots.returns), "the slot to be given up", patience=10)
    limiter.close()
    assert caplog.messages == []


def test_slots_to_return_are_bounded(monkeypatch: pytest.MonkeyPatch, shared: SharedStore) -> None:
    """A limiter keeps a bounded number of slots during an outage; the others expire."""
    monkeypatch.setattr(held_slots, "_MAX_UNRETURNED", 2)
    limiter = Limiter(RULES, shared)
    left_over(limiter, shared, 4)
    assert len(limiter.slots.returns) == 2
    limiter.close()


def left_over(limiter: Limiter, store: SharedStore, requests: int) -> None:
    """End requests during an outage."""
    verdicts = [limiter.hit(WHO) for _ in range(requests)]
    store.down = True
    for verdict in verdicts:
        limiter.conclude(verdict, 200)
