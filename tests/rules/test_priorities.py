"""The classes of requests, and the share of a quota that a rule keeps for the important ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import INVALID, ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.rules.priorities import Priorities, parse_priorities
from ratelimit_mw.testing import ManualClock

RESERVE = {"critical": "20%", "normal": "10%"}


def limiter(settings: Any = None, store: Any = None, **options: Any) -> Limiter:
    rule = {"name": "api", "limits": "10/minute", "reserve": RESERVE, **options}
    loaded = load_settings({"rules": [rule], **(settings or {})})
    return Limiter.from_settings(loaded, ManualClock(1_000_000.0), store)


def allowed(limits: Limiter, priority: object = None, times: int = 20, **features: Any) -> int:
    hits = [limits.hit({"ip": "192.0.2.7", "priority": priority, **features}) for _ in range(times)]
    return sum(map(bool, hits))


@each(
    ("value", "name"),
    [
        ("critical", "critical"),
        (" Background\t", "background"),
        (None, "normal"),
        ("", "normal"),
        ("urgent", "normal"),
        (INVALID, "normal"),
        (1, "normal"),
        (["critical"], "normal"),
    ],
)
def test_a_request_without_a_class_of_the_list_is_of_the_middle_one(value: object, name: str) -> None:
    """A client cannot name a class that does not exist."""
    assert Priorities().class_of({"priority": value}) == name


@each(
    ("order", "middle"),
    [(["all"], "all"), (["high", "low"], "high"), (["a", "b", "c"], "b"), (["a", "b", "c", "d"], "b")],
)
def test_the_middle_class_is_the_higher_one_of_two(order: list[str], middle: str) -> None:
    """The order has from one to ten classes."""
    assert parse_priorities({"order": order}).class_of({}) == middle


@each(
    ("options", "counts"),
    [
        ({}, [7, 1, 2]),
        ({"reserve": {"normal": "30%"}}, [7, 3, 0]),
        ({"reserve": {"background": "30%"}}, [10, 0, 0]),
        ({"limits": "3/minute"}, [3, 0, 0]),
        ({"limits": "1/minute"}, [1, 0, 0]),
        ({"limits": "10/minute burst 20", "algorithm": "gcra"}, [14, 2, 4]),
        ({"cost": 2}, [3, 1, 1]),
        ({"per": {"ip": {"192.0.2.7": "20/minute"}}}, [14, 2, 4]),
        ({"per_key": {"192.0.2.7": "20/minute"}}, [14, 2, 4]),
        ({"schedule": {"mon-sun 00:00-24:00": "20/minute"}}, [14, 2, 4]),
    ],
)
def test_the_share_is_of_each_limit(options: dict[str, Any], counts: list[int]) -> None:
    """It is rounded down, so each class has at least one."""
    limits = limiter(**options)
    assert [allowed(limits, name) for name in ("background", "normal", "critical")] == counts


def test_an_override_and_a_function_have_the_share() -> None:
    """Limits that are known only now keep it as well."""
    rule = Rule(name="api", limits=lambda ip: "20/minute", key=["ip"], reserve=RESERVE)
    limits = Limiter([rule], clock=ManualClock(1_000_000.0))
    assert [allowed(limits, name) for name in ("background", "critical")] == [14, 6]
    limits.clients.override("api", {"ip": "192.0.2.8"}, "30/minute", 3600)
    assert [allowed(limits, name, 40, ip="192.0.2.8") for name in ("background", "critical")] == [21, 9]


def test_a_wait_is_until_the_class_may_pass() -> None:
    """The wait of a class is longer than that of one above it, and is exact."""
    limits = limiter(algorithm="sliding-window-log")
    clock: Any = limits.clocks.own
    for _ in range(10):
        limits.hit({"ip": "192.0.2.7", "priority": "critical"})
        clock.advance(1)
    waits = [limits.peek({"ip": "192.0.2.7", "priority": name}).retry_after for name in ("critical", "background")]
    assert waits == [50.0, 53.0]
    clock.advance(53 - 1e-6)
    assert not limits.hit({"ip": "192.0.2.7", "priority": "background"})
    clock.advance(1e-6)
    assert limits.hit({"ip": "192.0.2.7", "priority": "background"})


def test_a_cost_function_and_an_estimate_are_of_the_class() -> None:
    """An estimate is at most what the class can pass at once. A cost above that never fits."""
    limits = limiter(cost="json:n")
    verdict = limits.hit({"ip": "192.0.2.7", "json:n": 50, "priority": "background"})
    assert (verdict.allowed, verdict.decisions[0].remaining) == (True, 0)
    rule = Rule(name="api", limits="10/minute", cost=lambda features: features["n"], reserve=RESERVE)
    verdict = Limiter([rule]).hit({"ip": "192.0.2.7", "n": 8, "priority": "background"})
    assert (verdict.allowed, verdict.retry_after) == (False, None)


@each("last", ["background", "critical"])
def test_an_outage_continues_from_the_shared_count(last: str) -> None:
    """A process without its store knows how much all classes have taken."""
    store, settings = SharedStore(), {"fleet_size": 1, "rejection_cache": 0}
    limits = limiter(settings, store, algorithm="sliding-window-log")
    assert [allowed(limits, name, 1) for name in ("critical", "critical", last)] == [1, 1, 1]
    store.down = True
    assert [allowed(limits, name) for name in ("background", "normal", "critical")] == [4, 1, 2]


def test_a_cached_rejection_is_of_its_class() -> None:
    """A process that knows that background requests are rejected asks the store for critical ones."""
    limits = Limiter([Rule(name="api", limits="10/hour", reserve=RESERVE)], SharedStore())
    assert [allowed(limits, name) for name in ("background", "critical", "background")] == [7, 3, 0]


@each(
    ("table", "message"),
    [
        ({"order": []}, r"priorities\.order: expected from 1 to 10 different classes"),
        ({"order": ["a", "a"]}, r"priorities\.order: expected from 1 to 10 different classes"),
        ({"order": ["A"]}, r"priorities\.order\[0\]: expected a word in lower case"),
        ({"order": "critical"}, r"priorities\.order: expected a list of text"),
        ({"header": "x y"}, r"priorities\.header: expected a feature"),
        ({"oder": ["a"]}, r"priorities\.oder: unknown option. Did you mean 'order'\?"),
    ],
)
def test_a_table_that_cannot_work_is_an_error(table: Any, message: str) -> None:
    """The message has the place."""
    expect_error(message, load_settings, {"priorities": table})
    expect_error("cost: the cost 8 is above the limit 10/minute without its reserve", lambda: limiter(cost=8))


def test_an_unknown_class_is_an_error_with_its_line(tmp_path: Path) -> None:
    """So it is in a rule of a decorator that the file overrides, and in a rule of Python."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('[[rules]]\nname = "api"\nlimits = "9/s"\nreserve = { urgent = "5%" }\n')
    with pytest.raises(ConfigError, match=r'ratelimit\.toml:4: rules\[0\] "api": reserve\.urgent: unknown class'):
        load_settings(file)
    expect_error(
        r"rules\[0\] \"v\": reserve\.urgent",
        load_settings,
        {"rules": [{"overrides": "v", "reserve": {"urgent": "5%"}}]},
    )
    expect_error("rule 'api': reserve.urgent", Limiter, [Rule(name="api", limits="9/s", reserve={"urgent": "5%"})])


def test_a_reload_uses_the_new_order(tmp_path: Path) -> None:
    """The limits of the rule are built anew, and the count stays."""
    file = tmp_path / "ratelimit.toml"
    text = '[priorities]\norder = {}\n[[rules]]\nname = "api"\nlimits = "10/minute"\nreserve = {{ a = "20%" }}\n'
    file.write_text(text.format('["a", "b"]'))
    limits = Limiter.from_settings(file, ManualClock(1_000_000.0))
    assert allowed(limits, "b") == 8
    file.write_text(text.format('["b", "a"]'))
    limits.reload()
    assert allowed(limits, "b") == 2
