"""Mistakes in the options of a rule: each error names its place."""

from __future__ import annotations

from typing import Any

import pytest
from tables import case, expect_error

from ratelimit_mw import ConfigError, Rule, load_settings
from ratelimit_mw.errors import error_path
from ratelimit_mw.rules.options import RuleDefaults
from ratelimit_mw.rules.rule import Match


def test_every_mistake_names_its_place() -> None:
    """The error names the rule, the field and the entry, the value given and the expected one."""
    for options, message in (
        ({"limits": "5/fortnight"}, "rule .login.: limits: cannot parse quota '5/fortnight'"),
        ({"limits": ["5/minute", "x"]}, "rule .login.: limits\\[1\\]: cannot parse quota 'x'"),
        ({"limits": []}, "limits: a rule needs at least one limit"),
        ({"limits": None}, "limits: expected AMOUNT/PERIOD"),
        ({"limits": "5/minute; 6/60s"}, "limits: two limits have the period of '5/minute'"),
        ({"limits": "5/minute burst 9"}, "limits\\[0\\]: the algorithm has no burst"),
        ({"limits": ["99999 concurrent"]}, "limits\\[0\\]: expected at most 10,000 concurrent requests"),
        ({"name": "two words"}, "name: expected 1 to 200 printable"),
        ({"name": 7}, "name: .*got 7"),
        ({"key": ["user-agent"]}, "key\\[0\\]: expected a feature"),
        ({"key": None}, "key: expected a list of features"),
        ({"match": "/login"}, "match: expected a table such as"),
        ({"match": {"path": "login"}}, "match.path: expected a path pattern"),
        ({"match": {"path": []}}, "match.path: an empty list matches no request"),
        ({"match": {"user-agent": "x"}}, "match.user-agent: expected a feature"),
        ({"match": {7: "x"}}, "match: expected a feature.* got 7"),
        ({"match": {"methods": ["GTE"]}}, "match.methods: expected an HTTP method .* got 'GTE'"),
        ({"match": {"methods": ["POTS"]}}, "match.methods: expected an HTTP method"),
        ({"match": {"methods": 7}}, "match.methods: expected an HTTP method .* got 7"),
        ({"match": {"methods": "ALL"}}, "match.methods: 'ALL' is not a method. Leave it out to match all methods"),
        ({"match": {"methods": ["GET", "any"]}}, "match.methods: 'any' is not a method"),
        ({"match": {"methods": ["*"]}}, "match.methods: '\\*' is not a method"),
        ({"match": {"method": "ALL"}}, "match.method: 'ALL' is not a method"),
        ({"match": {"method": "PSOT"}}, "match.method: expected an HTTP method"),
        ({"per": {"method": {"GTE": "1/minute"}}}, "per.method\\['GTE'\\]: expected an HTTP method"),
        ({"key": "method", "per_key": {"ALL": "1/minute"}}, "per_key\\['ALL'\\]: 'ALL' is not a method"),
        ({"match": {"host": "example.com:80"}}, "match.host: expected a host without port"),
        ({"match": {"host": "http://x"}}, "match.host: expected a host"),
        ({"match": {"host": None}}, "match.host: expected a host .* got None"),
        ({"match": {"region": []}}, "match.region: an empty list matches no request"),
        ({"match": {"region": [""]}}, "match.region: expected text"),
        ({"match": {"region": [True]}}, "match.region: expected text"),
        ({"match": {"region": 1.5}}, "match.region: expected text"),
        ({"algorithm": "sliding"}, "algorithm: unknown algorithm 'sliding'"),
        ({"algorithm": {"name": "gcra", "burst": 1}}, "algorithm: gcra has no option 'burst'"),
        ({"cost": -1}, "cost: expected a cost as a whole number"),
        ({"cost": 1.5}, "cost: .*got 1.5"),
        ({"cost": True}, "cost: .*got True"),
        ({"when_missing": "deny"}, "when_missing: expected 'skip' or 'reject'; got 'deny'"),
        ({"mode": None}, "mode: expected 'enforce' or 'shadow'; got None"),
        ({"count_when": 401}, "count_when: expected {status = \\[401, 403\\]}"),
        ({"count_when": {"code": 401}}, "count_when.code: unknown option. Expected one of status, marked"),
        (
            {"count_when": {"status": []}},
            "count_when: expected {status = .* or {marked = true}; got {'status': \\[\\]}",
        ),
        (
            {"count_when": {"marked": False}},
            "count_when: expected {status = .* or {marked = true}; got {'marked': False}",
        ),
        ({"count_when": {"marked": "yes"}}, "count_when.marked: expected true or false; got 'yes'"),
        (
            {"count_when": {"status": "6xx"}},
            "count_when.status: expected HTTP status codes .* such as \"4xx\"; got '6xx'",
        ),
        ({"count_when": {"status": [401.0]}}, "count_when.status: .* got 401.0"),
        ({"count_unless": {"marked": True}}, "count_unless.marked: unknown option. Expected one of status"),
        ({"count_unless": 302}, "count_unless: expected {status = \\[302\\]}; got 302"),
        ({"count_unless": {"status": []}}, "count_unless: expected {status = \\[302\\]}; got {'status': \\[\\]}"),
        ({"count_unless": {"status": 99}}, "count_unless.status: .* got 99"),
        (
            {"count_when": {"status": 404}, "count_unless": {"status": "4xx"}},
            "count_unless.status: no status is left to count",
        ),
        (
            {"count_unless": {"status": ["1xx", "2xx", "3xx", "4xx", "5xx"]}},
            "count_unless.status: no status is left to count",
        ),
        ({"count_when": {"status": [99]}}, "count_when.status: expected HTTP status codes .* got 99"),
        ({"count_when": {"status": [True]}}, "count_when.status: .* got True"),
        ({"per_key": {"a": "x"}}, "per_key\\['a'\\]: cannot parse quota"),
        ({"per_key": {"a": []}}, "per_key\\['a'\\]: a rule needs at least one limit"),
        ({"per_key": {"a": "5/minute burst 9"}}, "per_key\\['a'\\]\\[0\\]: the algorithm has no burst"),
        ({"per_key": ["a"]}, "per_key: expected a table"),
        ({"per_key": {"a": "1/s"}, "key": ["ip", "user"]}, "per_key: per_key needs a key of one part"),
        ({"per_key": {"a": "1/s"}, "key": []}, "per_key: per_key needs a key of one part"),
        ({"per": 7}, "per: expected a table"),
        ({"per": {"user-agent": {"a": "1/s"}}}, "per: expected a feature"),
        ({"per": {"plan": "1/s"}}, "per.plan: expected a table"),
        ({"per": {"plan": {"free": "x"}}}, "per.plan\\['free'\\]: cannot parse quota"),
        ({"per": {"plan": {"free": "5/minute burst 9"}}}, "per.plan\\['free'\\]\\[0\\]: the algorithm has no burst"),
        ({"on_store_error": "retry"}, "on_store_error: expected 'allow' or 'deny' or 'local'"),
    ):
        with case(options), pytest.raises(ConfigError, match=message) as caught:
            Rule(**{"name": "login", "limits": "5/minute", **options})
        assert isinstance(caught.value, ValueError), options


def test_an_option_that_no_limit_uses_is_an_error() -> None:
    """It would change nothing, and nobody would notice. One limit that uses it is enough."""
    adaptive: Any = {"limits": "adaptive 5..9 concurrent", "target": 1}
    for base, option, value in (
        (adaptive, "cost", 2),
        (adaptive, "cost_from", {"header": "x-cost"}),
        (adaptive, "count_when", {"status": 401}),
        (adaptive, "count_unless", {"status": 302}),
        (adaptive, "algorithm", "gcra"),
        ({"limits": "9 concurrent; 9 per calendar day"}, "algorithm", "gcra"),
    ):
        expect_error(f"^{option}: .*Remove ", Rule, **{**base, option: value})
        for other in (
            {"limits": [base["limits"], "9/s"]},
            {"per": {"plan": {"pro": "9/s"}}},
            {"limits": lambda ip: ""},
        ):
            with case(option, other):
                Rule(**{**base, option: value, **other})
        if option in RuleDefaults.__annotations__:
            with case(option):
                load_settings({"rules": [base], "defaults": {option: value}})


def test_an_error_in_a_file_has_the_path_of_the_file() -> None:
    """The error has the path in the file and no rule name besides."""
    with pytest.raises(ConfigError, match=r"^rules\[1\]\.cost: expected a cost"), error_path("rules[1]"):
        Rule(name="login", limits="5/minute", cost=-1)


def test_a_rule_is_immutable() -> None:
    """All requests share the rules."""
    rule = Rule(limits="1/s")
    with pytest.raises(AttributeError):
        rule.cost = 2  # type: ignore[misc]
    assert Rule(limits="1/s") == rule != Rule(limits="2/s")


def test_an_empty_match_matches_every_request() -> None:
    """A condition that is left out matches every value."""
    assert Match.parse({}) == Match()
    assert Match().takes_features({})
    assert Match().takes_host("any")
