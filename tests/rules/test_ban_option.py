"""The option ``ban`` of a rule: its form and its defaults."""

from __future__ import annotations

from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import BanTerms
from ratelimit_mw.operations.overview import Overview

BAN: dict[str, Any] = {"after": 10, "within": "10m", "for": "1h"}
MINUTE = 60_000_000


def rule_of(ban: Any, **options: Any) -> Rule:
    return Rule(name="login", limits="5/minute", ban=ban, **options)


def test_all_fields_are_parsed() -> None:
    """The longest ban is seven days, or the first one. Any key with a feature of the client may have a ban."""
    for more, expected in (
        ({"growth": 2, "max": "1d", "status": 403}, BanTerms(10, 10 * MINUTE, 60 * MINUTE, 2, 1440 * MINUTE, 403)),
        ({}, BanTerms(10, 10 * MINUTE, 60 * MINUTE, 1, 7 * 1440 * MINUTE, 429)),
        ({"for": "8d"}, BanTerms(10, 10 * MINUTE, 8 * 1440 * MINUTE, 1, 8 * 1440 * MINUTE, 429)),
    ):
        for key in (["endpoint", "user"], ["header:x-api-key"], ["user|ip"], ["ip/24"], ["path:tenant"]):
            assert rule_of({**BAN, **more}, key=key).ban == expected
    assert rule_of(None).ban is rule_of(False).ban is None


def test_rules_have_the_ban_of_the_defaults_unless_they_have_none() -> None:
    rules = [{"name": "a", "limits": "1/m"}, {"name": "b", "limits": "1/m", "ban": False}]
    limiter = Limiter.from_settings({"defaults": {"ban": BAN}, "rules": rules})
    assert [rule.ban is None for rule in limiter.rules.rules] == [False, True]


def test_the_commands_show_a_ban() -> None:
    """In the column of the limits, and as it was written in JSON."""
    rules = Limiter([rule_of(BAN), Rule(name="api", limits="9/minute", ban={**BAN, "after": 1, "growth": 3})]).rules
    overview = Overview(rules, {})
    assert [overview.row(rule)["limits"] for rule in rules.rules] == [
        ["5/minute", "ban after 10 rejections in 10m, for 1h"],
        ["9/minute", "ban after 1 rejection in 10m, for 1h; each ban 3 times as long as the last, at most 1w"],
    ]
    assert overview.as_json(rules.rules[0])["ban"] == BAN
