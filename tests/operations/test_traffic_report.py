"""The outcomes and clients of a traffic log, as ``report``, ``top`` and the admin API show them."""

from __future__ import annotations

from typing import Any

import pytest

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.operations.traffic_report import report_json, top_json
from ratelimit_mw.testing import ManualClock

ANN, BOB = {"ip": "192.0.2.7"}, {"ip": "192.0.2.8"}
NOW = 1_767_268_830.0
RULES = [Rule(name="api", limits="2/minute"), Rule(name="new", limits="1/minute", mode="shadow")]


def limiter(rules: Any = RULES, **settings: Any) -> Limiter:
    loaded: Any = {"traffic_log": "memory://", "traffic_clients": True, **settings}
    return Limiter(rules, clock=ManualClock(NOW), settings=load_settings(loaded))


def report(rate: Limiter, last: float = 3_600) -> Any:
    assert rate.traffic_log is not None
    return report_json(rate.traffic_log, NOW - last, NOW, rate.rules)


def top(rate: Limiter, rule: str | None = None, limit: int = 10) -> list[tuple[str, str, int]]:
    assert rate.traffic_log is not None
    found = top_json(rate.traffic_log, NOW - 3_600, NOW, rate.rules, rule, limit)
    assert found["complete_from"] == 1
    return [(each["rule"], each["client"], each["rejected"]) for each in found["clients"]]


def test_a_rule_that_is_gone_keeps_its_row() -> None:
    """Its clients have the text of their keys. An event of the application is no rule. A long name is whole again."""
    rate = limiter([*RULES, Rule(name="x" * 200, limits="1/hour")])
    for _ in range(3):
        rate.hit(ANN)
    assert rate.traffic_log is not None
    rate.traffic_log.record("order:rejected")
    rate.traffic_log.record("rule:old:rejected", by="ip=192.0.2.9")
    found = report(rate)
    assert (found["from"], found["to"]) == ("2026-01-01T11:00:30+00:00", "2026-01-01T12:00:30+00:00")
    *_, long, old = found["rules"]
    assert (long["rule"], long["mode"], long["allowed"], long["rejected"]) == ("x" * 200, "enforce", 1, 2)
    assert (old["rule"], old["mode"]) == ("old", "")
    assert top(rate, "x" * 200) == [("x" * 200, "ip=192.0.2.7", 2)]
    assert top(rate)[-1] == ("old", "ip=192.0.2.9", 1)


def test_the_rejections_of_a_client_add_up() -> None:
    """A client that a rule also bans is above one that it only rejects. Rules with fewer rejections are not read."""
    rate = limiter()
    log = rate.traffic_log
    assert log is not None
    for event, client, number in (
        ("rule:api:rejected", "a", 5),
        ("rule:api:rejected", "b", 4),
        ("rule:api:banned", "b", 3),
        ("rule:api:allowed", "a", 90),
        ("rule:new:shadow", "c", 6),
        ("rule:few:allowed", "d", 99),
        ("rule:few:rejected", "d", 1),
    ):
        log.record(event, client, n=number)
    read: list[str] = []
    own = log.top
    log.top = lambda event, *rest: read.append(event) or own(event, *rest)  # type: ignore[method-assign,func-returns-value]
    assert top(rate, limit=2) == [("api", "b", 7), ("new", "c", 6)]
    assert "rule:few:rejected" not in read


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(name="all", limits="1/minute", key=[]), [("all", "", 1)]),
        (Rule(name="users", limits="1/minute", key=["user"], when_missing="reject"), []),
    ],
)
def test_a_rejection_without_a_client_is_counted(rule: Rule, expected: list[Any]) -> None:
    """One limit for all clients has a key without a name, and a missing feature has no key."""
    rate = limiter([rule])
    while rate.hit({}):
        pass
    assert report(rate)["rules"][0]["rejected"] == 1
    assert top(rate) == expected
