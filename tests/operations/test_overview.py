"""The overview of a limiter's rules, as the commands print it."""

from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.operations.overview import Overview


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
    limiter = Limiter(
        [Rule(name="api", key=["user"], limits=limits_of, per_key=limits_of, algorithm="gcra", cost=cost_of)]
    )
    overview = Overview(limiter.rules, {})
    (rule,) = limiter.rules.rules
    name = f"{__name__}.limits_of()"
    assert overview.row(rule)["limits"] == [name, f"key: {name}"]
    assert (overview.row(rule)["algorithm"], overview.row(rule)["cost"]) == (["gcra"], [f"{__name__}.cost_of()"])
    assert (overview.as_json(rule)["limits"], overview.as_json(rule)["per_key"]) == (name, name)


def test_an_option_without_a_column_is_shown_beside_the_mode() -> None:
    """An option with its default is not shown."""
    options: Any = {"on_store_error": "deny", "wait": "5s", "max_waiting": 7, "hold_at_most": 90, "unrouted": True}
    rules = Limiter([Rule(limits="2 concurrent", **options), Rule(limits="5/minute", unrouted=False)]).rules
    overview = Overview(rules, {})
    first, second = rules.rules
    assert overview.as_json(first).items() >= options.items()
    texts = ['on_store_error = "deny"', 'wait = "5s"', "max_waiting = 7", "hold_at_most = 90", "unrouted = true"]
    assert sorted(overview.row(first)["mode"]) == sorted(["enforce", *texts])
    assert overview.as_json(second).keys().isdisjoint(options)
    assert overview.row(second)["mode"] == ["enforce"]
    adaptive = Rule(limits="adaptive 5..9/s", tune="health", target="1s", reserve={"critical": "20%"})
    (rule,) = Limiter([adaptive]).rules.rules
    texts = ["enforce", 'reserve = {"critical": "20%"}', 'target = "1s"', 'tune = "health"']
    assert sorted(overview.row(rule)["mode"]) == texts


def limits_of(user: str) -> str:
    return "5/minute"


def cost_of(request: Any) -> int:
    return 1
