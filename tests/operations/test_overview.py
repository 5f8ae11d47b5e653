"""The overview of a limiter's rules, and the outcomes and clients of a traffic log, as all tools show them."""

from typing import Any

import pytest

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.operations.overview import Overview, row_of
from ratelimit_mw.operations.traffic import LogOutcomes
from ratelimit_mw.testing import ManualClock


def test_allow_and_deny_lists_are_shown_with_their_precedence() -> None:
    """Both lists have a line before the lines on precedence. Without lists there are only those lines."""
    lists = {"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}
    limiter = Limiter.from_settings({"lists": lists})
    allow, deny, *_ = Overview(limiter.rules, {}, []).notes()
    assert allow.startswith("allow list: ip;")
    assert deny.startswith("deny list: user;")
    assert not [line for line in Overview(Limiter([]).rules, {}, []).notes() if line.startswith(("allow", "deny"))]


def test_an_algorithm_is_shown_under_the_name_in_the_rule() -> None:
    """The amount decides how ``sliding-window`` counts, so a rule may have both forms of it."""
    for options, shown in (
        ({"limits": "5/minute; 1000/day"}, "sliding-window"),
        ({"limits": "5/minute", "algorithm": {"name": "sliding-window"}}, "sliding-window"),
        ({"limits": "5/minute", "algorithm": FixedWindow}, "fixed-window"),
        ({"limits": "5/minute", "algorithm": {"name": "tiered-window", "precision": "2s"}}, "tiered-window (2s)"),
        ({"limits": "5 concurrent"}, "concurrency"),
    ):
        rules = Limiter([Rule(name="api", **options)]).rules
        assert Overview(rules, {}).as_json(rules.rules[0])["algorithm"] == shown, options


def test_limits_from_a_function_are_shown_by_its_name() -> None:
    """Their values depend on the client."""
    limiter = Limiter([Rule(name="api", key=["user"], limits=limits_of, algorithm="gcra", cost=cost_of)])
    overview = Overview(limiter.rules, {})
    (rule,) = limiter.rules.rules
    name = f"{__name__}.limits_of()"
    assert row_of(overview.as_json(rule))["limits"] == [name]
    row = row_of(overview.as_json(rule))
    assert (row["algorithm"], row["cost"]) == (["gcra"], [f"{__name__}.cost_of()"])
    assert overview.as_json(rule)["limits"] == name


def test_an_option_without_a_column_is_shown_beside_the_mode() -> None:
    """An option with its default is not shown."""
    options: Any = {"on_store_error": "deny", "wait": "5s", "max_waiting": 7, "hold_at_most": 90, "unrouted": True}
    rules = Limiter([Rule(limits="2 concurrent", **options), Rule(limits="5/minute", unrouted=False)]).rules
    overview = Overview(rules, {})
    first, second = rules.rules
    assert overview.as_json(first).items() >= options.items()
    texts = ['on_store_error = "deny"', 'wait = "5s"', "max_waiting = 7", "hold_at_most = 90", "unrouted = true"]
    assert sorted(row_of(overview.as_json(first))["mode"]) == sorted(["enforce", *texts])
    assert overview.as_json(second).keys().isdisjoint(options)
    assert row_of(overview.as_json(second))["mode"] == ["enforce"]
    adaptive = Rule(limits="adaptive 5..9/s", tune="health", target="1s", reserve={"critical": "20%"})
    (rule,) = Limiter([adaptive]).rules.rules
    texts = ["enforce", 'reserve = {"critical": "20%"}', 'target = "1s"', 'tune = "health"']
    assert sorted(row_of(overview.as_json(rule))["mode"]) == texts
    (rule,) = Limiter([Rule(limits="5/s", count_when={"status": {"5xx", 401}})]).rules.rules
    assert overview.as_json(rule)["count_when"] == {"status": [401, "5xx"]}


def limits_of(user: str) -> str:
    return "5/minute"


def cost_of(request: Any) -> int:
    return 1


ANN, BOB = {"ip": "192.0.2.7"}, {"ip": "192.0.2.8"}
NOW = 1_767_268_830.0
RULES = [Rule(name="api", limits="2/minute"), Rule(name="new", limits="1/minute", mode="shadow")]


def limiter(rules: Any = RULES, **settings: Any) -> Limiter:
    loaded: Any = {"traffic_log": "memory://", "traffic_clients": True, **settings}
    return Limiter(rules, clock=ManualClock(NOW), settings=load_settings(loaded))


def report(rate: Limiter, last: float = 3_600) -> Any:
    assert rate.traffic_log is not None
    return LogOutcomes(rate.traffic_log, NOW - last, NOW, rate.rules).report()


def top(rate: Limiter, rule: str | None = None, limit: int = 10) -> list[tuple[str, str, int]]:
    assert rate.traffic_log is not None
    found = LogOutcomes(rate.traffic_log, NOW - 3_600, NOW, rate.rules).top(rule, limit)
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
