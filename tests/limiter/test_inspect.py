"""What is left under the keys of a store, and how a key is reset: ``inspect`` and ``reset_key``."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from limiter_ways import rule
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import Decision, Limiter, Rule, StoreError
from ratelimit_mw.decision import Hit
from ratelimit_mw.errors import StateError
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.stores.base import KeyPage
from ratelimit_mw.testing import ManualClock


class Listing(SharedStore):
    """A store behind a connection, which can list its keys."""

    def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        return self.states.list_keys(prefix, cursor)


def opened(*rules: Rule, store: Any = None) -> tuple[Limiter, ManualClock]:
    clock = ManualClock(1_000_000.0)
    return Limiter(rules, store or MemoryStore(), clock=clock), clock


def shown(decisions: Iterable[Decision]) -> list[tuple[str, str, int, bool]]:
    return [(each.rule, each.client, each.remaining, each.allowed) for each in decisions]


@each("store", [MemoryStore, Listing])
def test_keys_show_what_is_left(way: Any, store: type[Store]) -> None:
    """Each limit of each rule has its decision. The next request of a full key would be rejected."""
    rate, _ = opened(rule(["2/minute", "9/hour"], "login"), rule("5/hour", "api", key=["user"]), store=store())
    for user in ("ann", "ann", "bob"):
        rate.hit({"ip": f"192.0.2.{user}", "user": user})
    found = way(rate.clients).inspect()
    assert found.cursor is None
    assert sorted(shown(found.decisions)) == [
        ("api", "user=ann", 3, True),
        ("api", "user=bob", 4, True),
        ("login", "ip=192.0.2.ann", 0, False),
        ("login", "ip=192.0.2.ann", 7, True),
        ("login", "ip=192.0.2.bob", 1, True),
        ("login", "ip=192.0.2.bob", 8, True),
    ]
    assert shown(way(rate.clients).inspect("api").decisions) == [
        ("api", "user=ann", 3, True),
        ("api", "user=bob", 4, True),
    ]
    [rejected] = way(rate.clients).inspect(rejected=True).decisions
    assert (rejected.rule, str(rejected.quota), rejected.retry_after, rejected.limit) == ("login", "2/minute", 60.0, 2)


def test_a_key_is_reset_with_all_limits_of_its_rule(way: Any) -> None:
    """One click unlocks a client: the count of the hour goes, too. Other clients keep their counts."""
    rate, _ = opened(rule(["2/minute", "9/hour"], "login"))
    for ip in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        rate.hit({"ip": ip})
    [rejected] = rate.clients.inspect(rejected=True).decisions
    way(rate.clients).reset_key(rejected.key)
    assert sorted(shown(rate.clients.inspect().decisions)) == [
        ("login", "ip=192.0.2.2", 1, True),
        ("login", "ip=192.0.2.2", 8, True),
    ]


def test_a_client_is_found_by_its_features(way: Any) -> None:
    """Every store can show one key, even one that cannot list keys. Limits by client are those of this client."""
    plans = rule("2/minute", "api", key=["user"], per={"plan": {"pro": "30/minute"}})
    rate, _ = opened(plans, store=SharedStore())
    for _ in range(3):
        rate.hit({"user": "ann", "plan": "pro"})
    assert shown(way(rate.clients).inspect("api", {"user": "ann", "plan": "pro"}).decisions) == [
        ("api", "user=ann", 27, True)
    ]
    assert shown(way(rate.clients).inspect("api", {"user": "ann"}).decisions) == [("api", "user=ann", 0, False)]
    assert shown(way(rate.clients).inspect("api", {"user": "bob"}).decisions) == [("api", "user=bob", 2, True)]
    assert way(rate.clients).inspect("api", {"user": "bob"}, rejected=True).decisions == []
    expect_error("SharedStore cannot list its keys", way(rate.clients).inspect, "api")
    rate, _ = opened(Rule(name="api", limits=lambda user: "1/minute" if user == "ann" else "5/minute", key=["user"]))
    rate.hit({"user": "ann"})
    assert shown(way(rate.clients).inspect("api", {"user": "ann"}).decisions) == [("api", "user=ann", 0, False)]


def test_adaptive_limits_are_those_of_this_process(way: Any) -> None:
    """Those of requests in flight are on the first page. The amount of a rate and the reason are current."""
    adaptive = "adaptive 1..200 concurrent; 9/minute"
    rules = [
        Rule(name="load", limits=adaptive, target=1, key=["ip"]),
        Rule(name="rate", limits="adaptive 1..8/minute", tune="demand", key=["ip"]),
    ]
    for store in (MemoryStore(), Listing()):
        rate = Limiter(rules, store, ManualClock(1_000_000.0))
        held = [rate.hit({"ip": "192.0.2.7", "priority": "critical"}) for _ in range(3)]
        expected = [("load", 9, 9, 6, ""), ("load", 200, 20, 17, "start"), ("rate", 4, 4, 1, "start")]
        for name, own in ((None, expected), ("load", expected[:2])):
            found = way(rate.clients).inspect(name, name and {"ip": "192.0.2.7"}).decisions
            each = sorted((d.rule, d.quota.amount, d.limit, d.remaining, d.reason) for d in found)
            assert each == own
        for verdict in held:
            rate.conclude(verdict, 200)
        other = Limiter(rules, store, ManualClock(1_000_000.0))
        found = way(other.clients).inspect().decisions
        assert {(d.rule, d.quota.amount) for d in found} == {("load", 9), ("rate", 8)}
        found = way(other.clients).inspect("load", {"ip": "192.0.2.7"}).decisions
        assert [d.quota.amount for d in found] == [9]


def test_a_listed_key_has_the_lowest_limit_of_its_rule() -> None:
    """The plan of a client is not in its key."""
    rate, _ = opened(rule("9/minute", "api", key=["user"], per={"plan": {"free": "2/minute", "pro": "30/minute"}}))
    rate.hit({"user": "ann", "plan": "pro"})
    [decision] = rate.clients.inspect().decisions
    assert (str(decision.quota), decision.remaining) == ("2/minute", 1)


def test_the_cost_of_a_rule_decides_who_is_rejected() -> None:
    """With 2 left and a cost of 3, the next request is rejected. One whose cost is not known yet costs 1."""
    costs = {"api": 3, "free": 0, "called": lambda features: 5}
    rate, _ = opened(*(rule("5/minute", name, cost=cost) for name, cost in costs.items()))
    rate.hit({"ip": "192.0.2.1"})
    rejected = [("api", "ip=192.0.2.1", 2, False), ("called", "ip=192.0.2.1", 0, False)]
    assert shown(rate.clients.inspect(rejected=True).decisions) == rejected


def test_expired_keys_and_keys_of_other_rules_are_not_shown() -> None:
    """A store may keep a key for a while after it has expired, and the keys of a rule that is gone."""
    store = MemoryStore()
    rate, clock = opened(rule("1/minute", "api"), store=store)
    other = Limiter([rule("1/minute", "other")], store, clock=clock)
    rate.hit({"ip": "192.0.2.1"})
    other.hit({"ip": "192.0.2.1"})
    assert [decision.rule for decision in rate.clients.inspect().decisions] == ["api"]
    clock.advance(119.0)
    assert rate.clients.inspect().decisions == []


def test_slots_and_shadow_rules_are_shown() -> None:
    rate, _ = opened(rule("1 concurrent", "busy"), rule("1/minute", "trial", mode="shadow"))
    with rate.slot({"ip": "192.0.2.1"}):
        found = rate.clients.inspect(rejected=True).decisions
        assert [(each.rule, each.shadow) for each in found] == [("busy", False), ("trial", True)]


def test_a_page_ends_after_many_keys(way: Any) -> None:
    """No page reads the whole store. Together the pages have each key once."""
    rate, _ = opened(rule("1/minute", "api"), rule("2/minute", "rare", match={"path": "/rare"}))
    for number in range(12_000):
        rate.hit({"ip": f"192.0.2.{number}"})
    first = way(rate.clients).inspect()
    assert len(first.decisions) == 1_000
    assert first.cursor is not None
    assert len(way(rate.clients).inspect(cursor=first.cursor).decisions) == 1_000
    empty = way(rate.clients).inspect("rare")
    assert (empty.decisions, empty.cursor) == ([], "0:10000")
    last = way(rate.clients).inspect("rare", cursor=empty.cursor)
    assert (last.decisions, last.cursor) == ([], None)


def test_only_chosen_keys_are_read(way: Any) -> None:
    """A function sees each key before it is read. The name of a rule is escaped in keys."""
    rate, _ = opened(rule("5/minute", "a|b%7C"))
    for ip in ("192.0.2.1", "192.0.2.2"):
        rate.hit({"ip": ip})
    [decision] = way(rate.clients).inspect("a|b%7C", only=lambda key: key.endswith("2.2}")).decisions
    assert shown([decision]) == [("a|b%7C", "ip=192.0.2.2", 4, True)]
    rate.clients.reset_key(decision.key)
    assert [each.client for each in rate.clients.inspect().decisions] == ["ip=192.0.2.1"]


def test_a_key_is_shown_by_all_limits_of_its_rule(way: Any) -> None:
    """These are the keys that a reset forgets. A key without counts has none."""
    rate, _ = opened(rule(["2/minute", "9/hour"], "login"))
    rate.hit({"ip": "192.0.2.1"})
    [decision, _] = rate.clients.inspect().decisions
    assert {each.limit for each in way(rate.clients).inspect_key(decision.key)} == {2, 9}
    rate.clients.reset_key(decision.key)
    assert way(rate.clients).inspect_key(decision.key) == []


class Damaged(Listing):
    """A store in which the state of one key cannot be decoded."""

    names = True

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if any(hit.key.endswith("bad}") for hit in hits):
            raise StateError("a damaged state", [hit.key for hit in hits if hit.key.endswith("bad}") and self.names])
        return super().apply(hits, now, consume)


def test_a_damaged_state_hides_no_other_key() -> None:
    """A key whose state cannot be decoded is left out."""
    store = Damaged()
    rate, _ = opened(rule("5/minute", "api"), store=store)
    other = Limiter([rule("5/minute", "api")], store.states, clock=ManualClock(1_000_000.0))
    for ip in ("good", "bad"):
        other.hit({"ip": ip})
    assert shown(rate.clients.inspect().decisions) == [("api", "ip=good", 4, True)]
    store.names = False
    with pytest.raises(StoreError, match="a damaged state"):
        rate.clients.inspect()


def test_errors_name_what_was_given(way: Any) -> None:
    """They name what was given."""
    rate, _ = opened(rule("5/minute", "api", key=["user"]), rule("5/minute", "login"))
    clients = way(rate.clients)
    for message, call in {
        r"unknown rule 'apy'\. Did you mean 'api'": lambda: clients.inspect("apy"),
        r"unknown rule 'apy'": lambda: clients.reset_key("1|apy|fixed-window|1m|ip=1"),
        r"unknown rule 'ban'": lambda: clients.bans("ban"),
        r"key: expected a key as inspect\(\).*got 'any text'": lambda: clients.reset_key("any text"),
        r"key: expected a key": lambda: clients.inspect_key("any text"),
        r"the key of rule 'api' needs user": lambda: clients.inspect("api", {}),
        r"the key of rule 'login' needs ip": lambda: clients.inspect("login", {}),
        r"rule 'login' does not use user\. Its key is: ip": lambda: way(rate).reset("login", {"user": "ann"}),
        r"^rule: features name a client of one rule\. Name the rule, too$": lambda: clients.inspect(
            features={"ip": "1"}
        ),
        r"cursor: expected the cursor of an earlier page; got 'x'": lambda: clients.inspect(cursor="x"),
    }.items():
        expect_error(message, call)


def test_a_coroutine_that_waits_for_a_loop_is_not_run() -> None:
    with pytest.raises(RuntimeError, match="a blocking call waits for an event loop"):
        run_blocking(asyncio.sleep(0))
