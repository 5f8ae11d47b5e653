"""Counts of outcomes: observers that only count get the same numbers without an event."""

from __future__ import annotations

import threading
from itertools import repeat
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Event, Limiter, Rule, load_settings, log_rejections
from ratelimit_mw.limiter.observers import observers
from ratelimit_mw.limiter.observers.counts import Counter as Count
from ratelimit_mw.limiter.observers.counts import Labels, OutcomeCounts
from ratelimit_mw.testing import ManualClock

QUEUE: Any = {"name": "leaky-bucket", "mode": "queue"}
RULES = {
    "one rule": [Rule(name="api", limits="3/minute")],
    "two limits": [Rule(name="api", limits=["3/minute", "4/hour"])],
    "two rules": [Rule(name="api", limits="3/minute"), Rule(name="site", limits="5/minute", key=[])],
    "shadow": [Rule(name="api", limits="3/minute", mode="shadow")],
    "shadow beside a rule": [Rule(name="api", limits="3/minute"), Rule(name="new", limits="1/minute", mode="shadow")],
    "queue": [Rule(name="calls", limits="60/minute burst 3", algorithm=QUEUE)],
    "denied": [Rule(name="api", limits="3/minute", on_store_error="deny")],
    "no rule": [],
}


class Tally:
    """An observer that counts, and keeps the events that it is called with."""

    def __init__(self) -> None:
        self.counts = OutcomeCounts()
        self.counter_of = self.counts.counter_of
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.counts.add(event)


def counted(events: list[Event]) -> dict[Labels, int]:
    table = OutcomeCounts()
    for event in events:
        table.add(event)
    return table.totals()


@pytest.mark.parametrize("store", ["memory", "shared", "failing"])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_counts_are_those_of_events(rules: list[Rule], store: str) -> None:
    """Whatever the rules, the outcome, and the state of the store."""
    tally, events = Tally(), list[Event]()
    settings = load_settings({"lists": {"deny": {"user": ["eve"]}}})
    rates = [
        Limiter(rules, SharedStore() if store != "memory" else "memory://", ManualClock(1e6), settings, [observer])
        for observer in (tally, events.append)
    ]
    for rate in rates:
        for user in ("ann", "ann", "eve", "ann", "ann", "ann"):
            rate.hit({"ip": "192.0.2.7", "user": user})
        if store == "failing":
            store_of: Any = rate.store
            store_of.down = True
            rate.hit({"ip": "192.0.2.7"})
    assert tally.counts.totals() == counted(events)


@pytest.mark.parametrize("cache", ["1s", 0])
def test_a_rejection_from_the_cache_counts_only_the_rules_that_rejected(cache: Any) -> None:
    """The store is not asked, so other rules have no outcome. Without the cache, all of them have one."""
    rules = [
        Rule(name="api", limits="1/day"),
        Rule(name="new", limits="1/day", mode="shadow"),
        Rule(name="site", limits="9/day"),
    ]
    tally = Tally()
    rate = Limiter(rules, SharedStore(), settings=load_settings({"rejection_cache": cache}), observers=[tally])
    for _ in range(4):
        rate.hit({"ip": "192.0.2.7"})
    counts = {(rule, outcome): number for (rule, outcome, _), number in tally.counts.totals().items()}
    first = {("api", "allowed"): 1, ("new", "allowed"): 1, ("api", "rejected"): 3}
    asked = 3 if cache == 0 else 1
    assert counts == {**first, ("new", "shadow"): asked, ("site", "allowed"): 1 + asked}


def test_rules_that_deny_without_a_store_are_the_only_ones_that_count() -> None:
    """Rules in shadow mode cannot deny, and rules that allow or count locally are not decided."""
    rules = [
        Rule(name=f"{policy}-{mode}", limits="9/day", on_store_error=policy, mode=mode)
        for policy in ("deny", "allow", "local")
        for mode in ("enforce", "shadow")
    ]
    tally, store = Tally(), SharedStore()
    rate = Limiter(rules, store, observers=[tally])
    store.down = True
    rate.hit({"ip": "192.0.2.7"})
    assert tally.counts.totals() == {("deny-enforce", "unavailable", "local"): 1}


def test_most_requests_need_no_event() -> None:
    """An observer that needs events gets them, even beside one that does not."""
    alone, beside = Tally(), Tally()
    limits, events = [Rule(name="api", limits="1/minute")], list[Event]()
    for given in ([alone, log_rejections], [beside, events.append]):
        rate = Limiter(limits, observers=given)  # type: ignore[arg-type]
        for _ in range(2):
            rate.hit({"ip": "192.0.2.7"})
    assert [event.outcome for event in alone.events] == ["rejected"]  # for the log
    assert [event.outcome for event in beside.events] == [event.outcome for event in events] == ["allowed", "rejected"]
    assert alone.counts.totals() == beside.counts.totals()


def test_a_forked_child_asks_its_observers_for_new_counters() -> None:
    """Those of the parent may count what the parent reports."""
    asked: list[Labels] = []

    def observe(event: Event) -> None: ...

    vars(observe).update(counter_of=lambda labels: asked.append(labels) or repeat(None))
    limiter = Limiter([Rule(name="api", limits="9/minute")], observers=[observe])
    for _ in range(2):
        limiter.hit({"ip": "192.0.2.7"})
    assert asked == [("api", "allowed", "memory")]
    limiter.observers.start_over()
    limiter.hit({"ip": "192.0.2.7"})
    assert asked == [("api", "allowed", "memory")] * 2


def test_names_of_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "MAX_SERIES", 1)
    tally = Tally()
    counters = observers.Counters([tally], "allowed", "memory")
    for name in ("a", "b", "b"):
        counter: Count | None = counters.find(name, None)
        assert counter is not None
        next(counter)
    assert {endpoint: list(found) for endpoint, found in counters.by_endpoint.items()} == {None: ["a"]}
    assert tally.counts.totals() == {("a", "allowed", "memory"): 1, ("b", "allowed", "memory"): 2}


@pytest.mark.parametrize("names", [["api"], ["api", "site"]])
def test_endpoints_share_the_counters_of_an_observer_without_endpoints(names: list[str]) -> None:
    """They are bounded, and further endpoints are counted, too."""
    tally = Tally()
    rate = Limiter([Rule(name=name, limits="9/day") for name in names], observers=[tally])
    verdict = rate.peek({"ip": "192.0.2.7"})
    for number in range(observers.MAX_SERIES + 2):
        rate.observers.report_one(verdict, f"/{number}")
    assert tally.events == []
    assert tally.counts.totals() == {(name, "allowed", "memory"): observers.MAX_SERIES + 2 for name in names}
    counters = rate.observers._allowed
    assert len(counters) == observers.MAX_SERIES
    assert len({id(each) for each in counters.values()}) == 1


@pytest.mark.parametrize("others", [0, 1])
def test_threads_lose_no_count(others: int) -> None:
    """Others read the counts at the same time."""
    tally, done = Tally(), threading.Event()
    more = [Tally() for _ in range(others)]
    rate = Limiter([Rule(name="api", limits="1000000/minute")], observers=[tally, *more])
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(sum(tally.counts.totals().values()))

    def hit() -> None:
        for _ in range(2_000):
            rate.hit({"ip": "192.0.2.7"})

    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=hit) for _ in range(4)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    for each in (tally, *more):
        assert each.counts.totals() == {("api", "allowed", "memory"): 8_000}
    assert seen == sorted(seen)
