"""Mistakes in the options of a rule: each error names its place."""

import re
from typing import Any

import pytest
from tables import case, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.keys.features import SHARED_FEATURES
from ratelimit_mw.rules.decorators import make_mark
from ratelimit_mw.rules.options import RuleDefaults

BASE: dict[str, Any] = {"name": "login", "limits": "5/minute"}
BAN: dict[str, Any] = {"after": 10, "within": "10m", "for": "1h"}
BANS = (
    (True, ": expected false or a table such as {after = 10"),
    ("10/10m", ": expected false or a table such as {after = 10"),
    ({}, ": after is missing. Expected"),
    ({"after": 1, "for": "1h"}, ": within is missing"),
    ({**BAN, "afer": 3}, ".afer: unknown option. Did you mean 'after'?"),
    ({**BAN, "after": 0}, ".after: expected a whole number from 1 to 100; got 0"),
    ({**BAN, "after": 101}, ".after: expected a whole number from 1 to 100; got 101"),
    ({**BAN, "after": True}, ".after: expected a whole number from 1 to 100; got True"),
    ({**BAN, "growth": 1.5}, ".growth: expected a whole number from 1 to 100; got 1.5"),
    ({**BAN, "within": "0s"}, ".within: expected a duration above 0; got '0s'"),
    ({**BAN, "for": "400d"}, ".for: expected a duration of at most 366 days; got '400d'"),
    ({**BAN, "for": "soon"}, ".for: expected a duration such as"),
    ({**BAN, "max": "59m"}, ".max: expected at least the duration of for, '1h'; got '59m'"),
)
WORDS = 'expected days, times or both, such as "mon-fri 08:00-18:00" or "sat,sun"; got '
NO_RANGES = ("", "mon fri", "mon -fri", "monday", "mon-", "mon-xyz", "mon,", "2026-12-24")
NO_RANGES += ("08:00", "08:00-18:00 mon", "mon 08:00\u201318:00", "mon \u0660\u0668:\u0660\u0660-18:00")
RANGES = (
    *((text, WORDS) for text in NO_RANGES),
    *((text, f"expected times from 00:00 to 24:00; got {text!r}") for text in ("mon 08:60-18:00", "mon 08:00-24:01")),
    ("mon 24:00-01:00", "expected times from 00:00 to 24:00"),
    ("mon 08:00-08:00", "the range starts when it ends. For whole days, leave out the times; got 'mon 08:00-08:00'"),
)
WORK = "mon-fri 08:00-18:00"
OVERLAPPING = (
    (WORK, "wed 12:00-13:00", "wed"),
    (WORK, "MON-FRI 08:00-18:00", "mon"),
    ("fri 22:00-06:00", "sat", "sat"),
    ("sun 22:00-06:00", "mon 00:00-00:01", "mon"),
)
ZONE = 'timezone: expected a name such as "Europe/Berlin"; got '
RESERVE = {"critical": "20%", "normal": "10%"}
OTHERS: tuple[tuple[dict[str, Any], str], ...] = (
    *(
        ({"schedule": {one: "9/s", other: "9/s"}}, f"schedule: {one!r} and {other!r} overlap on {day}. Change one")
        for one, other, day in OVERLAPPING
    ),
    ({"schedule": WORK}, f"schedule: expected a table; got '{WORK}'"),
    ({"schedule": [WORK]}, f"schedule: expected a table; got ['{WORK}']"),
    ({"schedule": {WORK: "5/minit"}}, f"schedule['{WORK}']: cannot parse quota '5/minit'"),
    ({"schedule": {WORK: []}}, f"schedule['{WORK}']: a rule needs at least one limit"),
    ({"schedule": {WORK: ["5/minute", "6/minute"]}}, f"schedule['{WORK}']: two limits have the period"),
    ({"schedule": {5: "5/minute"}}, "schedule: expected days, times or both"),
    ({"schedule": {WORK: lambda: "5/minute"}}, f"schedule['{WORK}']: expected AMOUNT/PERIOD"),
    ({"schedule": {WORK: "9/s"}, "timezone": "Europe/Berln"}, f"{ZONE}'Europe/Berln'. Did you mean 'Europe/Berlin'?"),
    *(
        ({"schedule": {WORK: "9/s"}, "timezone": name}, f"{ZONE}{name!r}")
        for name in ("", "../etc/passwd", "\0", "/etc", 3, None, [1])
    ),
    ({"ban": BAN, "key": []}, "ban: key = [] is the same for many clients, so one would ban the others"),
    *(({"ban": BAN, "key": [name]}, f"ban: key = ['{name}'] is the same") for name in sorted(SHARED_FEATURES)),
    ({"ban": BAN, "key": ["endpoint", "host"]}, "ban: key = ['endpoint', 'host'] is the same"),
    ({"ban": BAN, "key": ["user|endpoint"]}, "ban: key = ['user|endpoint'] is the same"),
    ({"ban": BAN, "limits": "2 concurrent", "wait": "1s"}, "ban: cannot be combined with wait"),
    ({"ban": BAN, "consistency": "leased"}, 'consistency = "leased" cannot be combined with mode = "shadow", ban'),
    ({"ban": BAN, "lease": "5%"}, "lease: lease cannot be combined with"),
    *(({"lease": text}, f'lease: expected a share from "1%" to "50%"; got {text!r}') for text in ("0%", "51%", "2", 2)),
    ({"lease": "2%", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}, "lease: lease cannot be combined with"),
    ({"consistency": "leased", "mode": "shadow"}, 'consistency = "leased" cannot be combined with mode = "shadow"'),
    ({"consistency": "leased", "limits": "2 concurrent"}, "limits and calendar quotas are always exact"),
    ({"consistency": "leased", "count_when": {"status": 401}}, 'consistency = "leased" cannot be combined'),
    ({"consistency": "leased", "reserve": RESERVE}, 'consistency: consistency = "leased" cannot be combined with'),
    ({"consistency": "lease"}, "consistency: expected 'exact' or 'leased'; got 'lease'. Did you mean 'leased'?"),
    ({"reserve": {"critical": "0%"}}, 'reserve.critical: expected a share from "1%" to "99%"; got \'0%\''),
    ({"reserve": {"critical": 20}}, "reserve.critical: expected a share"),
    ({"reserve": {"critical": "60%", "normal": "40%"}}, "reserve: expected less than 100% in all; got 100%"),
    ({"reserve": "20%"}, "reserve: expected a table; got '20%'"),
    (
        {"reserve": RESERVE, "algorithm": {"name": "sliding-window-log", "count_rejected": True}},
        "reserve: cannot be combined with count_rejected",
    ),
    (
        {"reserve": RESERVE, "limits": "adaptive 5..9 concurrent", "target": 1},
        'reserve: no limit of the rule uses it. Add a limit such as "100/minute", or remove reserve',
    ),
    *(({"limits": "9 concurrent", "hold_at_most": no}, "hold_at_most") for no in ("0s", 0.5, "soon", -1, True, None)),
    ({"limits": "1 concurrent", "wait": "soon"}, "wait: expected a duration"),
    ({"limits": "1 concurrent", "max_waiting": 0}, "max_waiting: expected a whole number of at least 1; got 0"),
)
TOKENS = "json:max_tokens"


async def awaited(request: Any) -> int:
    return 1


COSTS: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"cost": "1"},
        r"cost: expected a cost as a whole number from 0 to .*; got '1'\. To read it from the request",
    ),
    ({"cost": f"{TOKENS}|0"}, rf"cost: expected at least 1 for a request without {TOKENS}; got '{TOKENS}\|0'"),
    ({"cost": f"{TOKENS}|{10**13}"}, "cost: expected a cost as a whole number"),
    ({"cost": f"{TOKENS}|{'9' * 5000}"}, "cost: expected a cost as a whole number"),
    ({"cost": "user-agent"}, "cost: expected a feature: .* got 'user-agent'"),
    ({"cost": ""}, "cost: expected a feature"),
    ({"cost": f"7|{TOKENS}"}, "cost: expected a feature: .* got '7'"),
    ({"cost": lambda: 1}, r"cost: expected a function of the request or message; got <lambda>\(\): too many"),
    ({"cost": lambda request, more: 1}, "function of the request or message; .* missing a required argument: 'more'"),
    *(
        ({"cost": cost}, "cost: expected a function that is not async")
        for cost in (awaited, type("Awaited", (), {"__call__": awaited})())
    ),
    ({"unit": "Tokens"}, "unit: expected a word in lower case such as \"tokens\"; got 'Tokens'"),
    *(({"unit": unit}, "unit: expected a word") for unit in ('a"b', "", None)),
)
LIMITS_OF_FUNCTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"limits": {"plan": "5/minute"}}, "limits: expected a function of the value of 'plan'; got '5/minute'"),
    ({"limits": {"plan": lambda: "9/s"}}, r"a function of the value of 'plan'; got <lambda>\(\): too many"),
    ({"limits": {"no feature!": awaited}}, "limits: expected a feature"),
    ({"limits": {}}, "limits: expected one feature and a function of its value"),
    ({"limits": {"plan": awaited, "user": awaited}}, "limits: expected one feature and a function of its value"),
    ({"limits": lambda: "9/s", "key": "user"}, r"limits: expected a function of the value of 'user'; got <lambda>\(\)"),
    ({"per_key": len, "key": "user"}, "per_key: expected a table; got <built-in function len>"),
    ({"limits_ttl": "soon"}, "limits_ttl: expected a duration"),
)


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
        ({"match": {"methods": 7}}, "match.methods: expected an HTTP method .* got 7"),
        ({"match": {"methods": "ALL"}}, "match.methods: 'ALL' is not a method. Leave it out to match all methods"),
        ({"match": {"methods": ["*", "any"]}}, "match.methods: '\\*' is not a method"),
        ({"match": {"methods": ["GET", "any"]}}, "match.methods: 'any' is not a method"),
        ({"match": {"method": "ALL"}}, "match.method: 'ALL' is not a method"),
        ({"match": {"method": "PSOT"}}, "match.method: expected an HTTP method"),
        ({"per": {"method": {"GTE": "1/minute"}}}, "per.method\\['GTE'\\]: expected an HTTP method"),
        ({"key": "method", "per_key": {"ALL": "1/minute"}}, "per_key\\['ALL'\\]: 'ALL' is not a method"),
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
        ({"count_when": {"status": [], "marked": False}}, "count_when: expected {status = .* or {marked = true}; got"),
        ({"count_when": {"marked": False}}, "count_when: expected {status"),
        ({"count_when": {"marked": "yes"}}, "count_when.marked: expected true or false; got 'yes'"),
        ({"count_when": {"status": "6xx"}}, "count_when.status: expected HTTP .* such as \"4xx\"; got '6xx'"),
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
        ({"count_when": {"status": [True]}}, "count_when.status: .* got True"),
        ({"per_key": {"a": "x"}}, "per_key\\['a'\\]: cannot parse quota"),
        ({"per_key": {"a": []}}, "per_key\\['a'\\]: a rule needs at least one limit"),
        ({"per_key": {"a": "5/minute burst 9"}}, "per_key\\['a'\\]\\[0\\]: the algorithm has no burst"),
        *(({"per_key": wrong}, "per_key: expected a table") for wrong in (["a"], [], 0, None)),
        ({"per_key": {"a": "1/s"}, "key": ["ip", "user"]}, "per_key: per_key needs a key of one part"),
        ({"per_key": {"a": "1/s"}, "key": []}, "per_key: per_key needs a key of one part"),
        ({"per": 7}, "per: expected a table"),
        ({"per": {"user-agent": {"a": "1/s"}}}, "per: expected a feature"),
        ({"per": {"plan": "1/s"}}, "per.plan: expected a table"),
        ({"per": {"plan": {"free": "x"}}}, "per.plan\\['free'\\]: cannot parse quota"),
        ({"per": {"plan": {"free": "5/minute burst 9"}}}, "per.plan\\['free'\\]\\[0\\]: the algorithm has no burst"),
        ({"on_store_error": "retry"}, "on_store_error: expected 'allow' or 'deny' or 'local'"),
        *LIMITS_OF_FUNCTIONS,
        *COSTS,
        *((options, re.escape(message)) for options, message in OTHERS),
        *(({"ban": ban}, f"ban{re.escape(message)}") for ban, message in BANS),
        *(({"schedule": {text: "9/s"}}, re.escape(f"schedule: {message}")) for text, message in RANGES),
    ):
        expect_error(message, Rule, **BASE | options)
    assert issubclass(ConfigError, ValueError)


def test_an_option_that_no_limit_uses_is_an_error() -> None:
    """It would change nothing, and nobody would notice. One limit that uses it is enough."""
    adaptive: Any = {"limits": "adaptive 5..9 concurrent", "target": 1}
    slots: Any = {"limits": "9 concurrent"}
    for base, option, value, using in (
        (adaptive, "cost", 2, {"limits": "9/s"}),
        (adaptive, "count_when", {"status": 401}, {"limits": "9/s"}),
        (adaptive, "count_unless", {"status": 302}, {"limits": "9/s"}),
        (adaptive, "algorithm", "gcra", {"limits": "9/s"}),
        (adaptive, "hold_at_most", "5s", slots),
        ({"limits": "9/minute"}, "hold_at_most", "5s", slots),
        ({"limits": "9/minute"}, "limits_ttl", "5s", {"limits": lambda ip: "9/s"}),
        (slots, "max_waiting", 5, {**slots, "wait": "1s"}),
        (slots, "algorithm", "gcra", {"limits": "9/s"}),
        (slots, "count_when", {"status": 401}, {"limits": "9 per calendar day"}),
        ({"limits": "9 per calendar day"}, "algorithm", "gcra", {"limits": "9/s"}),
    ):
        with case(base, option):
            expect_error(f"^{option}: .*[Rr]emove ", Rule, **{**base, option: value})
            Rule(**{**using, option: value})
            if isinstance(using["limits"], str):
                per: Any = {"limits": base["limits"], "per": {"plan": {"a": using["limits"]}}}
                Rule(**{**base, **using, option: value, **per})
            table: Any = {**base, "overrides": "v", option: value}
            assert load_settings({"rules": [table]}).amendments  # the rule is not known yet
            options: Any = {"name": "v", **using, option: value}
            mark = make_mark(options.pop("limits"), options, "shop.v")
            Limiter.from_settings({"rules": [{**base, "overrides": "v"}]}).reloads.adopt([mark])
            if option in RuleDefaults.__annotations__:
                load_settings({"rules": [base], "defaults": {option: value}})


def test_a_rule_is_immutable() -> None:
    """All requests share the rules. An attribute that a rule does not have would change nothing."""
    rule = Rule(limits="1/s")
    for name in ("cost", "costs"):
        with pytest.raises(AttributeError, match=f"a rule never changes. Build another one for another {name}"):
            setattr(rule, name, 2)
    assert Rule(limits="1/s") == rule != Rule(limits="2/s")
