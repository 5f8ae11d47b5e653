"""Overrides of single clients: what they change, when they end, and how other workers apply them."""

import logging
from pathlib import Path
from typing import Any

import pytest
from override_stores import ACME, API, OTHER, Recording, limiter_of, limits
from tables import each, expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.clock import SECOND, machine
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.rules.marks import marks_of
from ratelimit_mw.rules.overrides import ClientOverride, load_overrides
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

SECRET = "correct horse battery staple"


def test_an_override_changes_the_limits_of_one_client(way: Any) -> None:
    limiter = limiter_of()
    for _ in range(3):
        limiter.hit(ACME)
    override = way(limiter.clients).override("api", ACME, ["1000/minute", "20000/day"])
    assert override == ClientOverride("api", "{user=acme}", "1000/minute; 20000/day")
    assert way(limiter.clients).overrides() == [override]
    assert (override.client, override.until) == ("user=acme", None)
    assert [(d.limit, d.remaining) for d in limiter.peek(ACME, cost=0).decisions] == [(1000, 997), (20_000, 20_000)]
    assert limits(limiter, OTHER) == ["100/minute"]
    assert way(limiter.clients).remove_override("api", ACME)
    assert limits(limiter) == ["100/minute"]
    assert not way(limiter.clients).remove_override("api", ACME)
    assert way(limiter.clients).overrides() == []


def test_an_override_ends_to_the_microsecond(clock: ManualClock) -> None:
    """No store is read: each worker knows the end."""
    limiter = limiter_of(clock=clock)
    assert limiter.clients.override("api", ACME, "7/minute", duration="1m").until == 1_000_060.0
    clock.advance(59.999999)
    assert limits(limiter) == ["7/minute"]
    assert [each.limits for each in limiter.clients.overrides()] == ["7/minute"]
    clock.advance(0.000001)
    assert limits(limiter) == ["100/minute"]
    assert limiter.clients.overrides() == []
    limiter.clients.override("api", OTHER, "5/minute")
    assert [each.client for each in load_overrides(limiter.store.read_record("overrides"))] == ["user=other"]


def test_an_end_is_by_a_wall_clock_that_was_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock may be wrong when a worker starts, and a machine may be suspended. A ban from all rules ends alike."""
    now, hour = machine.time_ns(), 3_600 * SECOND * 1_000
    monkeypatch.setattr(machine, "time_ns", lambda: now + 2 * hour)
    limiter = Limiter([API])
    monkeypatch.setattr(machine, "time_ns", lambda: now)
    limiter.clients.override("api", ACME, "7/minute", duration="1h")
    limiter.clients.ban(None, OTHER, "1h")
    assert limits(limiter) == ["7/minute"]
    assert limiter.hit(OTHER).banned
    monkeypatch.setattr(machine, "time_ns", lambda: now + hour)
    assert limits(limiter) == limits(limiter, OTHER) == ["100/minute"]


@each("consistency", ["exact", "leased"])
@each("open_store", [MemoryStore, Recording])
@each("length", [1, 2])
def test_decisions_follow_overrides(way: Any, consistency: Any, open_store: Any, length: int) -> None:
    """Of a rule with one limit or two, each client consumes from its own limits, until its override ends."""
    clock = ManualClock(1_000_000.0)
    texts = ["100/minute", "100/hour"][:length]
    rule = Rule(name="api", key=["user"], limits=texts, consistency=consistency)
    limiter = limiter_of(rule, store=open_store(), clock=clock)
    for user, own in {"one": "7/minute", "two": "7/minute; 8/hour", "slots": "3 concurrent"}.items():
        limiter.clients.override("api", {"user": user}, own)
    limiter.clients.override("api", {"user": "free"}, "unlimited")
    limiter.clients.override("api", {"user": "past"}, "5/minute", duration="1m")
    decide = way(limiter).hit
    for user, remaining in {"one": [6], "two": [6, 7], "slots": [2], "free": [], "past": [4]}.items():
        decisions = decide({"user": user}).decisions
        assert [decision.remaining for decision in decisions] == remaining
    clock.advance(60)
    for user in ("past", "other"):
        assert [each.limit for each in decide({"user": user}).decisions] == [100] * length
    assert decide({}).decisions == ()


def test_unlimited_frees_a_client_from_all_limits_of_the_rule() -> None:
    """Other rules continue. A rule in shadow mode, and one with a function, agree."""
    shadow = Rule(name="new", key=["user"], limits="1/minute", mode="shadow")
    plan = Rule(name="plan", key=["user"], limits=lambda user: "2/minute")
    limiter = limiter_of(API, shadow, plan)
    for name in ("api", "new", "plan"):
        limiter.clients.override(name, ACME, "unlimited")
        assert name not in limiter.hit(ACME)
        assert name in limiter.hit(OTHER)
    assert limiter.hit(ACME).allowed
    assert limiter.clients.inspect("api", ACME).decisions == []


def test_an_override_precedes_tables_and_functions() -> None:
    def asked(user: str) -> str:
        calls.append(user)
        return "3/minute"

    calls: list[str] = []
    by_table = Rule(name="table", key=["user"], limits="1/minute", per_key={"acme": "2/minute"})
    by_plan = Rule(name="plan", key=["user"], limits="1/minute", per={"plan": {"pro": "2/minute"}})
    by_function = Rule(name="function", key=["user"], limits=asked)
    features = {**ACME, "plan": "pro"}
    limiter = limiter_of(by_table, by_plan, by_function)
    assert limits(limiter, features) == ["2/minute", "2/minute", "3/minute"]
    for name in ("table", "plan", "function"):
        limiter.clients.override(name, ACME, "9/minute")
    calls.clear()
    assert limits(limiter, features) == ["9/minute"] * 3
    assert calls == []
    assert limits(limiter, OTHER) == ["1/minute", "1/minute", "3/minute"]


def test_the_client_is_spelled_as_requests_spell_it() -> None:
    """Comparison form, networks, several parts, attributes, braces and a key for all clients."""
    keys: list[tuple[list[str], dict[str, Any], dict[str, Any]]] = [
        (["user"], {"user": " ÄCME "}, {"user": "äcme"}),
        (["email"], {"email": "Ann.B@Example.com "}, {"email": "ann.b@example.com"}),
        (["ip/24/48"], {"ip": "192.0.2.7"}, {"ip": "192.0.2.99"}),
        (["endpoint", "user|ip"], {"endpoint": "/a", "ip": "192.0.2.7"}, {"endpoint": "/a", "ip": "192.0.2.7"}),
        (["user.id"], {"user": {"id": 7}}, {"user": {"id": 7}}),
        (["path:id as int"], {"path:id": "007"}, {"path:id": "7"}),
        (["header:x-api-key"], {"header:x-api-key": "{a}%\ud800"}, {"header:x-api-key": "{a}%\ud800"}),
        (["user"], {"user": "x" * 500}, {"user": "X" * 500}),
        ([], {}, {"user": "anybody"}),
    ]
    for key, given, request in keys:
        limiter = limiter_of(Rule(name="api", key=key, limits="100/minute"))
        limiter.clients.override("api", given, "7/minute")
        assert limits(limiter, request) == ["7/minute"], key
        assert limiter.clients.remove_override("api", request)


def test_a_secret_keeps_personal_data_out_of_the_record() -> None:
    limiter = limiter_of(secret=SECRET)
    override = limiter.clients.override("api", ACME, "7/minute")
    assert limits(limiter) == ["7/minute"]
    assert b"acme" not in (limiter.store.read_record("overrides") or b"")
    assert override.key.startswith("{user#")
    assert limiter.clients.remove_override("api", {"user": "Acme"})


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"rule": "apj"}, "unknown rule 'apj'. Did you mean 'api'"),
    ({"features": {}}, "the key of rule 'api' needs user"),
    ({"features": {"usr": "acme"}}, "rule 'api' does not use usr. Did you mean user\\? Its key is: user"),
    ({"limits": "5/minut"}, "limits: cannot parse quota '5/minut'"),
    ({"limits": "1/minute; 2/minute"}, "limits: two limits have the period"),
    ({"limits": "2/minute", "rule": "dear"}, "limits: the cost 3 is above the limit 2/minute"),
    ({"limits": ""}, "limits: "),
    ({"duration": 0}, "duration: expected more than 0"),
    ({"duration": "600000w"}, "duration: expected a duration of at most 366 days; got '600000w'"),
    ({"duration": "7 moons"}, "duration: expected a duration such as"),
    ({"rule": "staff", "features": {"user.id": 7}}, "rule 'staff' reads user.id from the feature 'user'. Pass that"),
    ({"rule": "number", "features": {"path:id": "x"}}, "path:id as int of rule 'number' cannot have this value"),
]


@each(("changed", "message"), MISTAKES)
def test_a_mistake_is_named_and_changes_nothing(changed: dict[str, Any], message: str) -> None:
    dear = Rule(name="dear", key=["user"], limits="9/minute", cost=3)
    number = Rule(name="number", key=["path:id as int"], limits="9/minute")
    staff = Rule(name="staff", key=["user.id"], limits="9/minute")
    limiter = limiter_of(API, dear, number, staff)
    given = {"rule": "api", "features": ACME, "limits": "5/minute", **changed}
    expect_error(message, limiter.clients.override, **given)
    assert limiter.clients.overrides() == []


def limits_of(limiter: Limiter, name: str) -> Any:
    """Return the limits of a client under a rule."""
    rule = limiter.rules.by_name[name]
    return rule.limits_of(ACME, rule.build_key(ACME) or "", None)


def test_a_reload_and_decorators_keep_overrides(tmp_path: Path) -> None:
    file = tmp_path / "ratelimit.toml"
    text = 'key = ["user"]\nlimits = "100/minute"\n'
    file.write_text(f'[[rules]]\nname = "api"\n{text}')
    limiter = Limiter.from_settings(str(file))
    limiter.clients.override("api", ACME, "7/minute")
    mark = limit("1/minute", key=["user"], name="login")(lambda: None)
    limiter.reloads.adopt(marks_of(mark).marks)
    limiter.clients.override("login", ACME, "8/minute")
    assert [str(each.quota) for each in limits_of(limiter, "login")] == ["8/minute"]
    file.write_text(f'[[rules]]\nname = "api"\n{text}mode = "shadow"\n[[rules]]\nname = "more"\n{text}')
    limiter.reload()
    assert limits(limiter) == ["7/minute", "100/minute"]
    assert limiter.rules.by_name["login"].overrides is not None


def test_limits_of_clients_that_stay_the_same_are_the_same_objects() -> None:
    """So leases and cached rejections of all other clients survive a change."""
    limiter = limiter_of()
    limiter.clients.override("api", ACME, "7/minute")
    before = limits_of(limiter, "api")
    limiter.clients.override("api", OTHER, "8/minute")
    assert limits_of(limiter, "api") is before
    limiter.clients.clear_overrides()
    assert not limiter.rules.by_name["api"].overrides


def test_a_rule_that_has_changed_leaves_out_what_it_cannot_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, without the client. An override of a rule of another application is not logged."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('[[rules]]\nname = "api"\nkey = ["user"]\nlimits = "100/minute"\n')
    limiter = Limiter.from_settings(str(file))
    limiter.clients.override("api", ACME, "7/minute")
    for _ in range(2):
        file.write_text(file.read_text() + "cost = 9\n" * ("cost" not in file.read_text()))
        limiter.reload()
    assert limits(limiter) == ["100/minute"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "rule 'api': overrides of clients are not active: the cost 9 is above the limit 7/minute,"
        " so every request is rejected"
    )
    file.write_text(file.read_text().replace('"api"', '"other"'))
    limiter.reload()
    assert len(caplog.records) == 1


def test_inspect_and_reset_follow_an_override() -> None:
    limiter = limiter_of(Rule(name="api", key=["user"], limits="2/minute", algorithm="fixed-window"))
    limiter.hit(ACME)
    limiter.clients.override("api", ACME, "9/minute; 50/hour")
    limiter.hit(ACME)
    limiter.hit(OTHER)
    listed = {(d.client, str(d.source.quota)): d.remaining for d in limiter.clients.inspect("api").decisions}
    assert listed == {("user=acme", "9/minute"): 7, ("user=acme", "50/hour"): 49, ("user=other", "2/minute"): 1}
    limiter.reset("api", ACME)
    assert [d.remaining for d in limiter.peek(ACME, cost=0).decisions] == [9, 50]


def test_a_client_with_an_override_can_be_banned() -> None:
    """The ban of a rule stays, unless the client has no limits of the rule."""
    ban = {"after": 2, "within": "10m", "for": "1h"}
    limiter = limiter_of(Rule(name="api", key=["user"], limits="5/minute", ban=ban))
    limiter.clients.override("api", ACME, "1/minute")
    outcomes = [limiter.hit(ACME).allowed for _ in range(3)]
    assert outcomes == [True, False, False]
    assert (limiter.hit(ACME).retry_after or 0) > 3_000
    assert {decision.client for decision in limiter.clients.inspect("api", rejected=True).decisions} == {"user=acme"}
    limiter.clients.override("api", ACME, "unlimited")
    assert limiter.hit(ACME).allowed
    assert limiter.clients.inspect("api").decisions == []


def test_an_override_may_have_slots() -> None:
    """A plan is built anew, so that slots are returned."""
    limiter = limiter_of()
    limiter.clients.override("api", ACME, "1 concurrent")
    with limiter.slot(ACME):
        assert not limiter.hit(ACME).allowed
    assert limiter.hit(ACME).allowed


def test_a_rejected_client_is_allowed_at_once(url: str) -> None:
    """The rejection cache knows the earlier limit."""
    limiter = Limiter([Rule(name="api", key=["user"], limits="30/minute")], url, settings=Settings())
    while limiter.hit(ACME).allowed:
        pass
    limiter.clients.override("api", ACME, "1000/minute")
    assert limiter.hit(ACME).allowed
    limiter.close()


def test_the_log_of_a_change_has_no_client(caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of()
    with caplog.at_level(logging.DEBUG):
        limiter.clients.override("api", ACME, "7/minute")
        limiter.clients.remove_override("api", ACME)
    assert "acme" not in caplog.text
