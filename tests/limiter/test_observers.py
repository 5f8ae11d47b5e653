"""Observers of a limiter: the events of ``hit``, and the errors of observers."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from limiter_ways import rule

from ratelimit_mw import ConfigError, Event, Limiter, Rule, load_settings
from ratelimit_mw.limiter.observers.observers import name_of
from ratelimit_mw.limiter.observers.outcomes import outcomes_of
from ratelimit_mw.limiter.observers.readers import OutcomeReader
from ratelimit_mw.limiter.observers.traffic import TrafficFeed
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog

ANN = {"ip": "192.0.2.7"}


def observed(*rules: Rule, **options: Any) -> tuple[Limiter, list[Event]]:
    """Return a limiter and the list of its events."""
    events: list[Event] = []
    return Limiter(rules, clock=ManualClock(1_000_000.0), observers=[events.append], **options), events


def settings(**options: Any) -> Any:
    return load_settings({"secret": "correct horse battery staple", **options})


def note(event: Event) -> None:
    """An observer that a text names."""
    _noted.append(event.outcome)


async def awaited(event: Event) -> None:
    """An observer whose event would go missing, because nothing awaits it."""


_noted: list[str] = []


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
    assert repr(second) == "Event(outcome='rejected', rules=('api', 'site'), store='memory', cost=0)"


def test_each_way_to_consume_sends_one_event() -> None:
    """A peek sends none. Slots have no cost, because they are returned."""
    rate, events = observed(rule("1 concurrent"))
    rate.peek(ANN)
    with rate.slot(ANN):
        pass
    asyncio.run(rate.ahit(ANN))
    assert [(event.outcome, event.cost) for event in events] == [("allowed", 0)] * 2


def test_an_event_cannot_be_changed() -> None:
    """Its dicts are copies, which JSON can have."""
    rate, events = observed(rule("1/minute"), settings=load_settings({"event_features": ["ip"]}))
    rate.hit(ANN)
    (event,) = events
    with pytest.raises(AttributeError):
        event.outcome = "rejected"  # type: ignore[misc]
    for table in (event.costs, event.features, event.outcomes):
        json.dumps(table)
        cast(Any, table).clear()
    assert (event.costs, event.features, event.outcomes) == ({"r": 1}, {"ip": "192.0.2.7"}, {"r": "allowed"})


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


def test_the_decisions_of_an_event_have_no_keys() -> None:
    rate, events = observed(Rule(name="api", limits=["1/minute", "9/hour"]))
    rate.hit(ANN)
    decisions = events[0].decisions
    assert [(decision.rule, decision.allowed, decision.remaining) for decision in decisions] == [
        ("api", True, 0),
        ("api", True, 8),
    ]
    assert {decision.client for decision in decisions} == {""}
    assert "192.0.2.7" not in repr([decisions, events[0].features, [decision.key for decision in decisions]])


def test_a_shadow_rule_that_rejects_gives_shadow() -> None:
    rate, events = observed(Rule(name="new", limits="1/minute", mode="shadow"), Rule(name="api", limits="9/minute"))
    rate.hit(ANN)
    rate.hit(ANN)
    assert [event.outcome for event in events] == ["allowed", "shadow"]
    assert events[1].outcomes == {"new": "shadow", "api": "allowed"}
    assert events[1].costs == {"new": 0, "api": 1}
    assert events[1].wait == 0.0


def test_a_deny_list_gives_denied() -> None:
    rate, events = observed(settings=settings(lists={"deny": {"ip": ["192.0.2.7"]}}))
    rate.hit(ANN)
    assert (events[0].outcome, events[0].rules, events[0].wait, events[0].decisions) == ("denied", (), None, ())


def test_a_function_of_limits_that_fails_gives_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    def broken(value: Any) -> str:
        raise ValueError("no database")

    rate, events = observed(Rule(name="api", limits=broken))
    rate.hit(ANN)
    assert (events[0].outcome, events[0].outcomes, events[0].local) == ("unavailable", {"api": "unavailable"}, True)


def test_event_features_are_values_of_keys() -> None:
    """The features that the settings name, and those only. A rule that does not apply has none."""
    options = load_settings({"event_features": ["ip", "user"]})
    rate, events = observed(
        Rule(name="api", limits="9/minute", key=["endpoint", "ip"]),
        Rule(name="mails", limits="9/minute", key="user"),
        settings=options,
    )
    rate.hit({**ANN, "endpoint": "/login", "user": "ann {x}"})
    rate.hit({**ANN, "endpoint": "/login"})
    assert [event.features for event in events] == [{"ip": "192.0.2.7", "user": "ann {x}"}, {"ip": "192.0.2.7"}]


def test_event_features_are_digests_with_a_secret() -> None:
    options = settings(event_features=["ip", "path"])
    rate, events = observed(Rule(name="api", limits="9/minute", key=["path", "ip"]), settings=options)
    rate.hit({**ANN, "path": "/a"})
    assert events[0].features == {"path": "/a", "ip": options.secret.digest("ip", "192.0.2.7")}


def test_an_observer_that_raises_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision stands, later observers are called, and a later message has the number of errors in between."""
    now, events = [100.0], list[Event]()
    monkeypatch.setattr("ratelimit_mw.limiter.observers.observers.monotonic", lambda: now[0])

    def broken(event: Event) -> None:
        raise ValueError("broken observer")

    rate = Limiter([Rule(name="api", limits="9/minute")], observers=[broken, events.append])
    with caplog.at_level(logging.ERROR, "ratelimit_mw"):
        assert [rate.hit(ANN).allowed for _ in range(3)] == [True] * 3
        now[0] += 61.0
        rate.hit(ANN)
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"observer {__name__}.test_an_observer_that_raises_is_logged_once_a_minute.<locals>.broken")
    assert "raised ValueError; requests are not affected" in first
    assert "2 more errors since the last message" in second
    assert len(events) == 4


class Unwritable(TrafficLog):
    """A log that cannot count."""

    def record(self, *args: Any, **options: Any) -> None:
        raise OSError("the disk is full")


def test_a_traffic_log_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Requests are not affected."""
    feed = TrafficFeed(Unwritable("memory://"), has_clients=True)
    assert Limiter([Rule(name="api", limits="9/minute")], observers=[feed]).hit(ANN)
    assert "raised OSError; requests are not affected" in caplog.text


def test_a_traffic_log_counts_an_event_that_it_is_passed() -> None:
    rate, events = observed(Rule(name="api", limits="9/minute"))
    rate.hit(ANN)
    log = TrafficLog("memory://")
    TrafficFeed(log, has_clients=False)(events[0])
    assert list(log.events(0, 4e9)) == ["rule:api:allowed"]


def test_an_observer_that_hits_the_limiter_causes_no_event() -> None:
    """Without this, it would never end."""
    events: list[Event] = []

    def count(event: Event) -> None:
        events.append(event)
        rate.hit({"ip": "192.0.2.8"})

    rate = Limiter([Rule(name="api", limits="9/minute")], observers=[count])
    rate.hit(ANN)
    assert len(events) == 1


def test_settings_name_observers() -> None:
    _noted.clear()
    rate = Limiter.from_settings({"observers": [f"{__name__}:note"], "rules": [{"name": "api", "limits": "1/minute"}]})
    rate.hit(ANN)
    assert _noted == ["allowed"]
    assert rate.is_observed
    assert not Limiter(settings=rate.settings, observers=[]).is_observed


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


@pytest.mark.parametrize(
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
    with pytest.raises(ConfigError) as caught:
        Limiter(observers=observers)
    assert str(caught.value).startswith(message)


def test_a_name_in_event_features_that_is_no_feature_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"event_features\[0\]: expected a feature"):
        load_settings({"event_features": ["no-feature!"]})


def test_an_observer_without_a_name_is_named_by_its_class() -> None:
    """An object with ``__call__`` is an observer, too."""

    class Counter:
        def __call__(self, event: Event) -> None:
            raise ValueError

    assert name_of(Counter()).endswith("Counter")
    assert name_of([].append) == "builtins.list.append"


def test_an_allowed_check_after_a_shadow_rejection_leaves_the_outcome() -> None:
    limiter = Limiter([Rule(name="seen", limits="1/day", mode="shadow"), Rule(name="other", limits="9/day")])
    limiter.hit({"ip": "192.0.2.7"})
    verdicts = [limiter.hit({"ip": "192.0.2.7"}), limiter.hit({"ip": "192.0.2.8"})]
    assert outcomes_of(verdicts, None, "memory").outcome == "shadow"


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


@pytest.mark.parametrize("store", ["memory://", "redis://127.0.0.1:1"])
def test_event_features_of_local_decisions(store: str) -> None:
    events: list[Event] = []
    options = load_settings({"event_features": ["ip"], "fleet_size": 2})
    limiter = Limiter([Rule(name="api", limits="9/day")], store, settings=options, observers=[events.append])
    limiter.hit(ANN)
    assert (events[0].features, events[0].local) == ({"ip": "192.0.2.7"}, limiter.waits)
    limiter.close()


def test_an_observer_that_returns_a_coroutine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It could not be found at the start. A task is fine."""

    async def send(event: Event) -> None: ...

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[lambda event: send(event)])
    assert limiter.hit(ANN)
    assert "observer test_observers." in caplog.text
    assert "TypeError: it returned a coroutine" in caplog.text


def test_an_observer_whose_future_was_cancelled_cancels_no_request(caplog: pytest.LogCaptureFixture) -> None:
    def wait(event: Event) -> None:
        raise asyncio.CancelledError

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[wait])
    assert asyncio.run(limiter.ahit(ANN))
    assert "raised CancelledError" in caplog.text


def test_a_reader_that_cannot_count_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does one that cannot write its counts. It is logged once a minute."""
    written = []

    class FullDisk(OutcomeReader):
        def count(self, labels: Any, number: int) -> None:
            raise OSError("no space left")

        def write(self) -> None:
            written.append("counts")
            raise OSError("no space left")

    limiter = Limiter([Rule(name="api", limits="9/day")], observers=[FullDisk()])
    assert all(limiter.hit(ANN) for _ in range(2))
    limiter.close()
    assert written == ["counts"]
    assert caplog.text.count("FullDisk raised OSError") == 1


def test_aclose_lets_an_exporter_wait() -> None:
    """The event loop continues while a reader writes its counts, which may take seconds."""
    gate = threading.Event()

    class Exporter(OutcomeReader):
        def write(self) -> None:
            gate.wait(60)

    async def scenario() -> None:
        limiter = Limiter([Rule(name="api", limits="9/day")], observers=[Exporter()])
        closing = asyncio.ensure_future(limiter.aclose())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.set()
        await closing

    asyncio.run(scenario())


def test_a_limiter_that_is_gone_has_no_gauges() -> None:
    """Observers may outlive their limiter, as a registry of metrics keeps them."""
    limiter = Limiter([Rule(limits="1/minute")], observers=[lambda event: None])
    observers = limiter.observers
    assert list(observers.gauges()) == []
    del limiter
    gc.collect()
    assert observers.gates() is None
    assert list(observers.gauges()) == []
