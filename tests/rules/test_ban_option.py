"""The option ``ban`` of a rule: its form, its defaults and what it cannot be combined with."""

from __future__ import annotations

import re
from typing import Any

from tables import expect_error

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.decision import BanTerms
from ratelimit_mw.keys.features import OF_ALL_CLIENTS
from ratelimit_mw.operations.overview import Overview

BAN: dict[str, Any] = {"after": 10, "within": "10m", "for": "1h"}
MINUTE = 60_000_000


def rule_of(ban: Any, **options: Any) -> Rule:
    return Rule(name="login", limits="5/minute", ban=ban, **options)


def test_all_fields_are_parsed() -> None:
    ban = {**BAN, "growth": 2, "max": "1d", "status": 403}
    assert rule_of(ban).ban == BanTerms(10, 10 * MINUTE, 60 * MINUTE, 2, 1440 * MINUTE, 403)


def test_the_longest_ban_is_seven_days_or_the_first() -> None:
    for first, longest in (("1h", 7 * 1440), ("8d", 8 * 1440)):
        terms = rule_of({**BAN, "for": first}).ban
        assert terms is not None, first
        assert (terms.growth, terms.longest, terms.status) == (1, longest * MINUTE, 429), first


def test_a_rule_may_have_no_ban() -> None:
    for ban in (None, False):
        assert rule_of(ban).ban is None


def test_a_mistake_names_its_place() -> None:
    for ban, message in (
        (True, "ban: expected false or a table such as {after = 10"),
        ("10/10m", "ban: expected false or a table such as {after = 10"),
        ({}, "ban: after is missing. Expected"),
        ({"after": 1, "for": "1h"}, "ban: within is missing"),
        ({**BAN, "afer": 3}, "ban.afer: unknown option. Did you mean 'after'?"),
        ({**BAN, "after": 0}, "ban.after: expected a whole number from 1 to 100; got 0"),
        ({**BAN, "after": 101}, "ban.after: expected a whole number from 1 to 100; got 101"),
        ({**BAN, "after": True}, "ban.after: expected a whole number from 1 to 100; got True"),
        ({**BAN, "growth": 1.5}, "ban.growth: expected a whole number from 1 to 100; got 1.5"),
        ({**BAN, "within": "0s"}, "ban.within: expected a duration above 0; got '0s'"),
        ({**BAN, "for": "400d"}, "ban.for: expected a duration of at most 366 days; got '400d'"),
        ({**BAN, "for": "soon"}, "ban.for: expected a duration such as"),
        ({**BAN, "max": "59m"}, "ban.max: expected at least the duration of for, '1h'; got '59m'"),
        ({**BAN, "status": 404}, "ban.status: expected 403 or 429; got 404"),
    ):
        expect_error(re.escape(message), rule_of, ban)


def test_options_that_a_ban_excludes() -> None:
    for options, message in (
        ({"key": []}, "ban: key = [] is the same for many clients, so one would ban the others"),
        *(({"key": [name]}, f"ban: key = ['{name}'] is the same") for name in sorted(OF_ALL_CLIENTS)),
        ({"key": ["endpoint", "host"]}, "ban: key = ['endpoint', 'host'] is the same"),
        ({"key": ["user|endpoint"]}, "ban: key = ['user|endpoint'] is the same"),
        ({"limits": "2 concurrent", "wait": "1s"}, "ban: ban cannot be combined with wait"),
        ({"consistency": "leased"}, 'consistency: consistency = "leased" cannot be combined with mode = "shadow", ban'),
        ({"lease": "5%"}, "lease: lease cannot be combined with"),
    ):
        expect_error(re.escape(message), Rule, **{"name": "login", "limits": "100/minute", "ban": BAN, **options})


def test_a_key_of_a_client_may_have_a_ban() -> None:
    for key in (["endpoint", "user"], ["header:x-api-key"], ["user|ip"], ["ip/24"], ["path:tenant"]):
        assert Rule(name="login", limits="5/minute", key=key, ban=BAN).ban is not None


def test_rules_have_the_ban_of_the_defaults_unless_they_have_none() -> None:
    rules = [{"name": "a", "limits": "1/m"}, {"name": "b", "limits": "1/m", "ban": False}]
    limiter = Limiter.from_settings({"defaults": {"ban": BAN}, "rules": rules})
    assert [rule.ban is None for rule in limiter.rules.rules] == [False, True]


def test_a_mistake_in_the_defaults_is_named() -> None:
    expect_error(
        r"defaults\.ban\.after: expected a whole number", load_settings, {"defaults": {"ban": {**BAN, "after": "ten"}}}
    )


def test_the_commands_show_a_ban() -> None:
    """In the column of the limits, and as it was written in JSON."""
    rules = Limiter([rule_of(BAN), Rule(name="api", limits="9/minute", ban={**BAN, "after": 1, "growth": 3})]).rules
    overview = Overview(rules, {})
    assert [overview.row(rule)["limits"] for rule in rules.rules] == [
        ["5/minute", "ban after 10 rejections in 10m, for 1h"],
        ["9/minute", "ban after 1 rejection in 10m, for 1h; each ban 3 times as long as the last, at most 1w"],
    ]
    assert overview.as_json(rules.rules[0])["ban"] == BAN
