"""``log_rejections``: a line for each rejected request, with a limit on the lines."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ratelimit_mw import Limiter, Rule, load_settings, log_rejections
from ratelimit_mw.clock import monotonic
from ratelimit_mw.limiter.observers import rejection_log
from ratelimit_mw.testing import ManualClock

ANN = {"ip": "192.0.2.7"}


@pytest.fixture(autouse=True)
def _captured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rejection_log, "_lines", rejection_log._Lines())
    with caplog.at_level(logging.WARNING, "ratelimit_mw.events"):
        yield


def logged(*rules: Rule, **options: Any) -> Limiter:
    return Limiter(rules, clock=ManualClock(1_000_000.0), settings=load_settings(options), observers=[log_rejections])


def test_a_rejection_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """An allowed request is none. The line has no key."""
    rate = logged(Rule(name="api", limits="1/minute"), Rule(name="site", limits="9/minute"))
    rate.hit(ANN)
    rate.hit(ANN)
    (record,) = caplog.records
    assert record.getMessage() == "rejected by api; wait 60 s"
    fields = {name: value for name, value in vars(record).items() if name.startswith("ratelimit_")}
    assert fields == {
        "ratelimit_outcome": "rejected",
        "ratelimit_rules": ["api"],
        "ratelimit_method": None,
        "ratelimit_endpoint": None,
        "ratelimit_wait": 60.0,
        "ratelimit_store": "memory",
        "ratelimit_features": {},
        "ratelimit_left_out": 0,
    }


def test_a_line_has_the_endpoint_and_the_method(caplog: pytest.LogCaptureFixture) -> None:
    rate = logged(Rule(name="api", limits="1/minute"))
    for _ in range(2):
        rate.observers.report((rate.hit(ANN),), None, "/items/{id}", "GET")
    assert caplog.messages[1:] == ["rejected by api; GET /items/{id}; wait 60 s"]
    assert (vars(caplog.records[1])["ratelimit_method"], vars(caplog.records[1])["ratelimit_endpoint"]) == (
        "GET",
        "/items/{id}",
    )


def test_features_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    """A client that writes a line break writes no line of the log."""
    agent = Rule(name="api", limits="1/minute", key="header:agent as raw")
    rate = logged(agent, event_features=["header:agent"])
    for _ in range(2):
        rate.hit({"header:agent": "a%\nb"})
    assert caplog.messages == ["rejected by api; wait 60 s; header:agent 'a%\\nb'"]


def test_a_line_names_the_rules_that_rejected(caplog: pytest.LogCaptureFixture) -> None:
    """Those in shadow mode only where no other rejects, and none for a deny list. A long wait has no fraction."""
    shadow, api = Rule(name="new", limits="1/minute", mode="shadow"), Rule(name="api", limits="1/30d")
    for rules in ([shadow, api], [shadow]):
        rate = logged(*rules, lists={"deny": {"user": ["eve"]}})
        for _ in range(2):
            rate.hit(ANN)
    rate.hit({**ANN, "user": "eve"})
    assert caplog.messages == ["rejected by api; wait 2592000 s", "shadow by new", "denied"]


def test_ten_lines_a_second(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [monotonic()]
    monkeypatch.setattr(rejection_log, "monotonic", lambda: now[0])
    rate = logged(Rule(name="api", limits="1/minute"))
    for _ in range(14):
        rate.hit(ANN)
    now[0] += 1.0
    rate.hit(ANN)
    assert caplog.messages == [*["rejected by api; wait 60 s"] * 10, "rejected by api; wait 60 s; 3 more left out"]
    assert [vars(record)["ratelimit_left_out"] for record in caplog.records] == [*[0] * 10, 3]


def test_the_log_of_the_process_is_an_observer(caplog: pytest.LogCaptureFixture) -> None:
    rate = Limiter.from_settings(
        {"observers": ["ratelimit_mw:log_rejections"], "rules": [{"name": "api", "limits": "1/minute"}]}
    )
    for _ in range(2):
        rate.hit(ANN)
    rate.observers.report([rate.hit(ANN)])
    assert len(caplog.messages) == 3


def test_an_observer_of_your_own_may_pass_every_event_on(caplog: pytest.LogCaptureFixture) -> None:
    """An allowed request is no line here either."""
    rate = Limiter([Rule(name="api", limits="1/minute")], observers=[lambda event: log_rejections(event)])
    for _ in range(2):
        rate.hit(ANN)
    assert [vars(record)["ratelimit_outcome"] for record in caplog.records] == ["rejected"]
