"""Counts of outcomes: observers that only count get the same numbers without an event."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from forked import become_child
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Event, Limiter, Rule, load_settings, log_rejections
from ratelimit_mw.limiter.observers import observers
from ratelimit_mw.limiter.observers.events import Labels
from ratelimit_mw.limiter.observers.readers import OutcomeReader
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


def counted(events: list[Event]) -> dict[Labels, int]:
    table = OutcomeReader()
    for event in events:
        table(event)
    return table.totals()


@each("store", ["memory", "shared", "failing"])
@each("name", RULES)
def test_counts_are_those_of_events(name: str, store: str) -> None:
    """Whatever the rules, the outcome, and the state of the store."""
    tally, events = OutcomeReader(), list[Event]()
    settings = load_settings({"lists": {"deny": {"user": ["eve"]}}})
    rates = [
        Limiter(
            RULES[name], SharedStore() if store != "memory" else "memory://", ManualClock(1e6), settings, [observer]
        )
        for observer in (tally, events.append)
    ]
    for rate in rates:
        for user in ("ann", "ann", "eve", "ann", "ann", "ann"):
            rate.hit({"ip": "192.0.2.7", "user": user})
        if store == "failing":
            store_of: Any = rate.store
            store_of.down = True
            rate.hit({"ip": "192.0.2.7"})
    assert tally.totals() == counted(events)


def test_requests_with_other_rules_are_counted_apart() -> None:
    """Even if they have as many limits."""
    paths = [Rule(name=name, limits="9/day", match={"path": f"/{name}"}) for name in ("a", "b")]
    tally = OutcomeReader()
    rate = Limiter([Rule(name="site", limits="9/day"), *paths], observers=[tally])
    for name in "abb":
        rate.hit({"ip": "192.0.2.7", "path": f"/{name}"})
    assert tally.totals() == {(name, "allowed", "memory"): n for name, n in (("site", 3), ("a", 1), ("b", 2))}


@each("cache", ["1s", 0])
def test_a_rejection_from_the_cache_counts_only_the_rules_that_rejected(cache: Any) -> None:
    """The store is not asked, so other rules have no outcome. Without the cache, all of them have one."""
    rules = [
        Rule(name="api", limits="1/day"),
        Rule(name="new", limits="1/day", mode="shadow"),
        Rule(name="site", limits="9/day"),
    ]
    tally = OutcomeReader()
    rate = Limiter(rules, SharedStore(), settings=load_settings({"rejection_cache": cache}), observers=[tally])
    for _ in range(4):
        rate.hit({"ip": "192.0.2.7"})
    counts = {(rule, outcome): number for (rule, outcome, _), number in tally.totals().items()}
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
    tally, store = OutcomeReader(), SharedStore()
    rate = Limiter(rules, store, observers=[tally])
    store.down = True
    rate.hit({"ip": "192.0.2.7"})
    assert tally.totals() == {("deny-enforce", "unavailable", "local"): 1}


def test_an_event_is_built_only_for_an_observer_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of rejections needs none of an allowed request, and a reader needs none at all."""
    built: list[Event] = []
    monkeypatch.setattr(observers, "Event", lambda *args: built.append(Event(*args)) or built[-1])
    table, beside, limits = OutcomeReader(), OutcomeReader(), [Rule(name="api", limits="1/minute")]
    events: list[Event] = []
    for given, outcomes in (
        ([table, log_rejections], ["rejected"]),
        ([beside, events.append], ["allowed", "rejected"]),
    ):
        built.clear()
        rate = Limiter(limits, observers=given)  # type: ignore[arg-type]
        for _ in range(2):
            rate.hit({"ip": "192.0.2.7"})
        assert [event.outcome for event in built] == outcomes
    assert events == built
    assert table.totals() == beside.totals()


def test_a_forked_child_counts_from_zero() -> None:
    """The parent counts what it has reported."""
    table = OutcomeReader()
    limiter = Limiter([Rule(name="api", limits="9/minute")], observers=[table])
    limiter.hit({"ip": "192.0.2.7"})
    become_child()
    limiter.hit({"ip": "192.0.2.7"})
    assert table.totals() == {("api", "allowed", "memory"): 1}


def test_requests_with_several_verdicts_share_a_row() -> None:
    """A view may decide any number of times. Each number would have a row as long as itself."""
    rate = Limiter(RULES["one rule"], clock=ManualClock(1e6), observers=[OutcomeReader()])
    verdict = rate.peek({"ip": "192.0.2.7"})
    for number in range(1, 9):
        rate.observers.report((verdict,) * number)
    assert len(rate.observers._rows) == 2


@each("most", [2, 1000])
@each("names", [["api"], ["api", "site"]])
def test_all_endpoints_are_counted(names: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader shares the counters of all endpoints, and the traffic log counts each, also over the maximum."""
    monkeypatch.setattr(observers, "MAX_SERIES", most)
    table, settings = OutcomeReader(), load_settings({"traffic_log": "memory://"})
    rules = [Rule(name=name, limits="9/day") for name in names]
    for has_log in (False, True):
        rate = Limiter(rules, clock=ManualClock(1e6), settings=settings if has_log else None, observers=[table])
        verdicts = rate.peek({"ip": "192.0.2.7"}), rate.peek({"ip": "192.0.2.8"})
        for number in range(5):
            rate.observers.report(verdicts[:1], None, f"/{number}")
            rate.observers.report(verdicts[1:], None, f"/{number}", is_again=True)
        assert len(rate.observers._rows) == min(most, 6 if has_log else 1)
    assert table.totals() == {(name, "allowed", "memory"): 20 for name in names}
    assert rate.traffic_log is not None
    assert rate.traffic_log.events(1e6, 1e6) == {
        **{f"rule:{name}:allowed": 10 for name in names},
        **{f"endpoint:/{number}:allowed": 1 for number in range(5)},
    }


def test_threads_lose_no_count() -> None:
    """Others read the counts at the same time. No number falls."""
    tally, done = OutcomeReader(), threading.Event()
    readers = [tally, OutcomeReader()]
    rate = Limiter([Rule(name="api", limits="1000000/minute")], observers=readers)
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(sum(tally.totals().values()))

    with ThreadPoolExecutor(5) as pool:
        reading = pool.submit(read)
        hits = [pool.submit(lambda: [rate.hit({"ip": "192.0.2.7"}) for _ in range(2_000)]) for _ in range(4)]
        wait(hits)
        done.set()
        reading.result()
    assert [each.totals() for each in readers] == [{("api", "allowed", "memory"): 8_000}] * 2
    assert seen == sorted(seen)
