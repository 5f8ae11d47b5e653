"""Slots of requests that end during an outage: they are returned when the store is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_time import hurried
from redis_handles import PATIENT, address
from servers import Server, redis_running, wait_for
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Hit
from ratelimit_mw.limiter import slots as held_slots
from ratelimit_mw.stores import open_store

WHO = {"ip": "192.0.2.7"}


@pytest.fixture
def pausing(tmp_path: Path) -> Iterator[Server]:
    with redis_running(tmp_path) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("awaited", [False, True])
def test_slots_of_an_outage_are_returned_after_it(pausing: Server, awaited: bool) -> None:
    """Redis is paused while five requests end: some calls get no reply, the others are not sent."""
    rule = Rule(name="api", limits="5 concurrent")
    limiter = Limiter([rule], store := open_store(address(pausing), PATIENT))
    watcher = Limiter([rule], open_store(address(pausing), PATIENT))
    verdicts = [limiter.hit(WHO) for _ in range(5)]
    for verdict in verdicts:
        limiter.hold(verdict)
    assert free(watcher) == 0
    pausing.pause()
    with hurried(store, 0.3):
        for verdict in verdicts:
            if awaited:
                asyncio.run(limiter.aconclude(verdict, None))
            else:
                limiter.conclude(verdict, 200)
    assert limiter.breaker.open  # type: ignore[union-attr]
    pausing.resume()
    # They end automatically after a minute, which is not what is tested.
    wait_for(
        lambda: limiter.peek(WHO) and free(watcher) == 5, "the slots to come back", patience=50
    )  # they would expire after 60 s
    wait_for(lambda: not len(limiter.slots.unreturned), "everything to be answered")
    limiter.close()
    watcher.close()


def test_a_slot_is_returned_again_until_the_store_replies() -> None:
    """A store that takes the slot back without a reply is asked again. No other slot is freed."""
    store = SharedStore()
    limiter = Limiter([Rule(name="api", limits="5 concurrent")], store)
    verdict = limiter.hit(WHO)
    store.mute = True
    limiter.conclude(verdict, 200)
    assert limiter.hit(WHO)
    asked = store.calls
    wait_for(lambda: store.calls > asked, "another try")
    store.mute = False
    wait_for(lambda: limiter.peek(WHO) and not len(limiter.slots.unreturned), "an answer")
    assert store.states.apply([Hit(*verdict.decisions[0].hit[:2], 0)])[0].remaining == 4
    limiter.close()


def test_an_expired_slot_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the life of a slot the store is not asked about it again."""
    monkeypatch.setattr(held_slots, "SLOT_LIFE", 0)
    store = SharedStore()
    limiter = Limiter([Rule(name="api", limits="5 concurrent")], store)
    left_over(limiter, store, 1)
    wait_for(lambda: not len(limiter.slots.unreturned), "the slot to be given up")
    limiter.close()


def test_slots_to_return_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limiter keeps a bounded number of slots during an outage; the others expire."""
    monkeypatch.setattr(held_slots, "_MAX_UNRETURNED", 2)
    store = SharedStore()
    limiter = Limiter([Rule(name="api", limits="5 concurrent")], store)
    left_over(limiter, store, 4)
    assert len(limiter.slots.unreturned) == 2
    limiter.close()


def left_over(limiter: Limiter, store: SharedStore, requests: int) -> None:
    """End requests during an outage."""
    verdicts = [limiter.hit(WHO) for _ in range(requests)]
    store.down = True
    for verdict in verdicts:
        limiter.conclude(verdict, 200)


def free(limiter: Limiter) -> int:
    """The free slots, seen by a limiter whose breaker is closed."""
    return limiter.peek(WHO, cost=0).decisions[0].remaining
