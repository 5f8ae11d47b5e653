"""Observers of a limiter: the events of ``hit``, and the errors of observers."""

import asyncio
import json
import logging
import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from calls import on_loop
from limiter_ways import rule
from tables import each, expect_error

from ratelimit_mw import Event, Limiter, Rule, load_settings
from ratelimit_mw.limiter.observers.readers import OutcomeReader
from ratelimit_mw.testing import ManualClock, limits_timed_by

ANN = {"ip": "192.0.2.7"}


def observed(*rules: Rule, **options: Any) -> tuple[Limiter, list[Event]]:
    """Return a limiter and the list of its events."""
    events: list[Event] = []
    return Limiter(rules, clock=ManualClock(1_000_000.0), observers=[events.append], **options), events


def settings(**options: Any) -> Any:
    return load_settings({"secret": "correct horse battery staple", **options})


async def awaited(event: Event) -> None:
    """An observer whose event would go missing, because nothing awaits it."""


LOG = {"traffic_log": "memory://", "traffic_clients": True}


def test_an_event_has_the_outcome_of_a_hit() -> None:
    rate, events = observed(Rule(name="api", limits="1/minute"), Rule(name="site", limits="9/minute", key=[]))
    rate.hit(ANN)
    rate.hit(ANN)
    first, second = events
    assert (first.outcome, first.rules, first.store, first.local) == ("allowed", ("api", "site"), "memory", False)
    assert (first.wait, first.cost, first.costs, first.is_rejected) == (0.0, 1, {"api": 1, "site": 1}, False)
    assert first.features == {}
    assert (second.outcome, second.outcomes, second.wait) == (
        "rejected",
        {"api": "rejected", "site": "allowed"},
        60.0,
    )
    assert (second.cost, second.costs, second.is_rejected) == (0, {"api": 0, "site": 0}, True)
    rate.observers.report([rate.hit(ANN), rate.hit(ANN, 10)])
    assert events[-1].wait is None
    of_rules = "outcome='rejected', rules=('api', 'site')"
    assert repr(second) == f"Event({of_rules}, endpoint=None, method=None, store='memory', cost=0)"


def test_each_way_to_consume_sends_one_event() -> None:
    """A peek sends none. Slots have no cost, because they are returned."""
    rate, events = observed(rule("1 concurrent"))
    rate.peek(ANN)
    with rate.slot(ANN):
        pass
    asyncio.run(rate.ahit(ANN))
    assert [(event.outcome, event.cost) for event in events] == [("allowed", 0)] * 2


def test_an_event_cannot_be_changed() -> None:
    """Its dicts are copies, which JSON can have. Its decisions have no keys."""
    rate, events = observed(rule(["1/minute", "9/hour"]), settings=load_settings({"event_features": ["ip"]}))
    rate.hit(ANN)
    (event,) = events
    with pytest.raises(AttributeError):
        event.outcome = "rejected"  # type: ignore[misc]
    for table in (event.costs, event.features, event.outcomes):
        json.dumps(table)
        cast(Any, table).clear()
    assert (event.costs, event.features, event.outcomes) == ({"r": 1}, {"ip": "192.0.2.7"}, {"r": "allowed"})
    assert [(each.rule, each.allowed, each.remaining) for each in event.decisions] == [("r", True, 0), ("r", True, 8)]
    assert {each.client for each in event.decisions} == {""}
    assert "192.0.2.7" not in repr([event.decisions, [each.key for each in event.decisions]])


def test_a_cost_that_is_settled_later_does_not_change_the_event() -> None:
    """The event of ``hit`` has the cost of the hit."""
    rate, events = observed(rule("9/minute", "plain"), rule("9/minute", "counting", count_when={"status": 401}))
    verdict = rate.hit(ANN, cost=3)
    verdict["plain"].settle(5)
    verdict["counting"].settle(5)
    assert events[0].costs == {"plain": 3, "counting": 3}


def test_a_method_that_a_client_invents_has_one_name() -> None:
    """So an observer may use it as a label of a metric."""
    rate, events = observed(rule("9/minute"))
    for method in ("GET", "SPOOF"):
        rate.observers.report((rate.peek(ANN),), None, "/", method)
    assert [event.method for event in events] == ["GET", "_OTHER"]


def test_a_shadow_rule_that_rejects_gives_shadow() -> None:
    rate, events = observed(Rule(name="new", limits="1/minute", mode="shadow"), Rule(name="api", limits="9/minute"))
    rate.hit(ANN)
    rate.hit(ANN)
    assert [event.outcome for event in events] == ["allowed", "shadow"]
    assert events[1].outcomes == {"new": "shadow", "api": "allowed"}
    assert (events[1].costs, events[1].cost) == ({"new": 0, "api": 1}, 1)
    assert events[1].wait == 0.0
    rate.hit({"ip": "192.0.2.8"})
    verdicts = [rate.hit(ANN), rate.hit({"ip": "192.0.2.8"})]
    rate.observers.report(verdicts)
    assert events[-1].outcome == "shadow", "whatever a later check of the request allows"


def test_a_request_without_a_decision_of_the_store_has_an_outcome() -> None:
    """A deny list gives "denied", a function of limits that fails "unavailable"."""
    rate, events = observed(settings=settings(lists={"deny": {"ip": ["192.0.2.7"]}}))
    rate.hit(ANN)
    assert (events[0].outcome, events[0].rules, events[0].wait, events[0].decisions) == ("denied", (), None, ())
    rate, events = observed(Rule(name="api", limits=lambda ip: 1 // 0))
    rate.hit(ANN)
    assert (events[0].outcome, events[0].outcomes, events[0].local) == ("unavailable", {"api": "unavailable"}, True)


def test_event_features_are_values_of_keys() -> None:
    """The features that the settings name, and those only. A rule that does not apply has none."""
    rules = (
        Rule(name="api", limits="9/minute", key=["endpoint", "ip"]),
        Rule(name="mails", limits="9/minute", key="user"),
    )
    rate, events = observed(*rules, settings=load_settings({"event_features": ["ip", "user"]}))
    rate.hit({**ANN, "endpoint": "/login", "user": "ann {x}"})
    rate.hit({**ANN, "endpoint": "/login"})
    assert [event.features for event in events] == [{"ip": "192.0.2.7", "user": "ann {x}"}, {"ip": "192.0.2.7"}]
    secret = settings(event_features=["ip", "endpoint"])
    rate, events = observed(rules[0], settings=secret)
    rate.hit({**ANN, "endpoint": "/a"})
    assert events[0].features == {"endpoint": "/a", "ip": secret.secret.digest("ip", "192.0.2.7")}
    with limits_timed_by(ManualClock(1_000_000.0)):  # as in the tests of an application
        Limiter(rules, settings=rate.settings, observers=[events.append]).hit({"endpoint": "/a"})
    assert events[1].features == {"endpoint": "/a", "ip": "unknown"}


def test_an_observer_that_raises_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision stands, and later observers are called."""
    now, events = [100.0], list[Event]()
    monkeypatch.setattr("ratelimit_mw.limiter.observers.observers.monotonic", lambda: now[0])

    def broken(event: Event) -> None:
        raise ValueError("broken observer")

    rate = Limiter([Rule(name="api", limits="9/minute")], observers=[broken, events.append])
    with caplog.at_level(logging.ERROR, "ratelimit_mw"):
        assert [rate.hit(ANN).allowed for _ in range(3)] == [True] * 3
        now[0] += 61.0
        rate.hit(ANN)
    first, _ = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"observer {__name__}.test_an_observer_that_raises_is_logged_once_a_minute.<locals>.broken")
    assert "raised ValueError; requests are not affected" in first
    assert len(events) == 4


def test_a_traffic_log_is_an_observer(caplog: pytest.LogCaptureFixture) -> None:
    """When it cannot count, requests are not affected."""
    rate = Limiter([Rule(name="api", limits="9/minute")], settings=settings(**LOG))
    rate.traffic_log.record = lambda *_: 1 // 0  # type: ignore[assignment, method-assign, union-attr]
    assert rate.hit(ANN)
    assert "record raised ZeroDivisionError; requests are not affected" in caplog.text


def test_an_observer_that_hits_the_limiter_causes_no_event() -> None:
    """Without this, it would never end."""
    events: list[Event] = []

    def count(event: Event) -> None:
        events.append(event)
        rate.hit({"ip": "192.0.2.8"})

    rate = Limiter([Rule(name="api", limits="9/minute")], observers=[count])
    rate.hit(ANN)
    assert len(events) == 1


def test_an_argument_replaces_the_observers_of_the_settings() -> None:
    named = settings(observers=["logging:warning"])
    assert [Limiter(settings=named, observers=given).is_observed for given in (None, [])] == [True, False]


def test_observers_survive_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They belong to the limiter. A change of them in the file needs a restart."""
    path, events = tmp_path / "ratelimit.toml", list[Event]()
    for extra in ("", 'observers = ["logging:warning"]'):
        path.write_text(f'{extra}\n[[rules]]\nname = "api"\nlimits = "1/minute"\n')
        if not extra:
            rate = Limiter.from_settings(path, observers=[events.append])
        else:
            rate.reload()
        rate.hit(ANN)
    assert [event.outcome for event in events] == ["allowed", "rejected"]
    assert "observers changed: restart to apply it." in caplog.text


@each(
    ("observers", "message"),
    [
        ("print", "observers: expected a list such as"),
        (["print"], 'observers[0]: expected "module:function", such as "app.events:count"; got \'print\''),
        ([7], "observers[0]: expected a function of the event; got 7"),
        ([awaited], "observers[0]: expected a function without async; got awaited"),
        ([print, lambda: 0], "observers[1]: expected a function of the event; got <lambda>()"),
        (["nowhere.to:count"], "observers[0]: cannot import 'nowhere.to:count': No module named 'nowhere'"),
        (["logging:nothing"], "observers[0]: cannot import 'logging:nothing': module 'logging' has no attribute"),
    ],
)
def test_an_observer_that_cannot_work_is_an_error(observers: Any, message: str) -> None:
    expect_error("^" + re.escape(message), Limiter, observers=observers)


def test_a_reload_does_not_change_the_keys_of_earlier_decisions() -> None:
    """The key of a rule may have other features in the new settings, as the verdict of a request that has begun."""
    table: Any = {"event_features": ["path"], "rules": [{"name": "api", "limits": "9/day", "key": ["path", "ip"]}]}
    events: list[Event] = []
    limiter = Limiter.from_settings(table, observers=[events.append])
    verdict = limiter.hit({**ANN, "path": "/a"})
    for key in (["path"], ["ip", "user"], []):
        table["rules"][0]["key"] = key
        limiter.reload()
        limiter.observers.report((verdict,))
    assert [event.features for event in events] == [{"path": "/a"}] * 4


@each("store", ["memory://", "redis://127.0.0.1:1"])
def test_event_features_of_local_decisions(store: str) -> None:
    events: list[Event] = []
    options = load_settings({"event_features": ["ip"], "fleet_size": 2})
    limiter = Limiter([Rule(name="api", limits="9/day")], store, settings=options, observers=[events.append])
    limiter.hit(ANN)
    assert (events[0].features, events[0].local) == ({"ip": "192.0.2.7"}, limiter.waits)
    limiter.close()


def test_an_observer_may_raise_what_cancels_a_task(caplog: pytest.LogCaptureFixture) -> None:
    """A future in the observer that was cancelled cancels no request. An object is named by its class."""

    class Observer:
        def __call__(self, event: Event) -> Any:
            raise asyncio.CancelledError

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[Observer()])
    assert asyncio.run(limiter.ahit(ANN))
    assert ".Observer raised CancelledError" in caplog.text


def test_a_reader_that_cannot_count_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does one that cannot write its counts. It is logged once a minute."""
    written = []

    class FullDisk(OutcomeReader):
        def counters_of(self, outcomes: Any) -> Any:
            raise OSError("no space left")

        def write(self) -> None:
            written.append("counts")
            raise OSError("no space left")

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[FullDisk()])
    assert all(limiter.hit(ANN) for _ in range(2))
    limiter.close()
    assert written == ["counts"]
    assert caplog.text.count("FullDisk raised OSError") == 1


@on_loop
async def test_aclose_lets_an_exporter_wait() -> None:
    """The event loop continues while a reader writes its counts, which may take seconds."""
    gate = threading.Event()

    class Exporter(OutcomeReader):
        def write(self) -> None:
            gate.wait(60)

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[Exporter()])
    closing = asyncio.ensure_future(limiter.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await closing
