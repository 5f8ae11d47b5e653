"""``[defaults]``: the options of rules and decorators that do not set them."""

import re
from typing import Any

from flask import Flask
from tables import expect_error

from ratelimit_mw import Limiter, Rule, SettingsDict, load_settings
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.rules.decorators import make_mark, messages
from ratelimit_mw.rules.marks import marks_of

DEFAULTS: SettingsDict = {
    "defaults": {
        "key": ["user|ip"],
        "algorithm": "token-bucket",
        "on_store_error": "deny",
        "count_when": {"status": "4xx"},
    }
}


def options_of(limiter: Limiter, name: str) -> tuple[Any, ...]:
    source = limiter.rules.by_name[name].source
    return source.entries, source.algorithm, source.on_store_error, source.statuses and min(source.statuses)


FROM_DEFAULTS = ((("user", "ip"),), "token-bucket", "deny", 400)
OWN: Any = {"key": ["ip"], "algorithm": "sliding-window", "on_store_error": None, "count_when": None}
FROM_OWN = ((("ip",),), "sliding-window", None, None)


def test_rules_of_the_settings_have_the_defaults() -> None:
    """A rule keeps what it sets, even where the value is the package's own default."""
    rules: Any = [{"name": "a", "limits": "5/minute burst 2"}, {"name": "b", "limits": "5/minute", **OWN}]
    limiter = Limiter.from_settings({**DEFAULTS, "rules": rules})
    assert options_of(limiter, "a") == FROM_DEFAULTS
    assert options_of(limiter, "b") == FROM_OWN


def test_a_whole_file_can_be_in_shadow_mode() -> None:
    """Decorators, too. A rule with its own mode and the deny list still reject."""
    app = Flask("app")
    app.add_url_rule("/", view_func=limit("1/minute", name="view")(lambda: "hello"))
    rules: Any = [{"name": "a", "limits": "1/minute"}, {"name": "b", "limits": "3/minute", "mode": "enforce"}]
    lists: Any = {"deny": {"ip": ["192.0.2.9"]}}
    RateLimiter(app, settings={"defaults": {"mode": "shadow"}, "rules": rules, "lists": lists})
    statuses = [app.test_client().get("/").status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert app.test_client().get("/", environ_base={"REMOTE_ADDR": "192.0.2.9"}).status_code == 403


def test_a_rule_has_the_default_consistency_unless_it_states_one() -> None:
    """A lease of the rule has precedence, and a rule that the default does not fit is exact.

    Only a rule that says "exact" itself ignores its lease.
    """
    exact: Any = {"consistency": "exact"}
    for options, of_exact, of_leased in (
        ({}, ("exact", 0), ("leased", 2)),
        ({"lease": "5%"}, ("leased", 5), ("leased", 5)),
        (exact, ("exact", 0), ("exact", 0)),
        ({**exact, "lease": "5%"}, ("exact", 0), ("exact", 0)),
        ({"limits": "2 concurrent"}, ("exact", 0), ("exact", 0)),
        ({"count_when": {"status": 401}}, ("exact", 0), ("exact", 0)),
        ({"mode": "shadow"}, ("exact", 0), ("exact", 0)),
        ({"algorithm": {"name": "token-bucket", "refill": "interval"}}, ("exact", 0), ("exact", 0)),
        ({"algorithm": {"name": "gcra"}}, ("exact", 0), ("leased", 2)),
    ):
        for consistency, expected in (("exact", of_exact), ("leased", of_leased)):
            rules: Any = [{"limits": "100/minute", **options}]
            (rule,) = load_settings({"defaults": {"consistency": consistency}, "rules": rules}).rules  # type: ignore[typeddict-item]
            assert (rule.consistency, rule.lease_percent) == expected, (options, consistency)


def test_options_without_limits_are_checked_with_no_limits() -> None:
    """An algorithm that fits the limits of some rule is no mistake in the defaults, or in what changes a decorator."""
    for table in ("defaults", "overrides"):
        tiers: Any = {"algorithm": {"name": "tiered-window", "precision": "1m"}}
        settings: Any = {"defaults": tiers} if table == "defaults" else {"rules": [{"overrides": "shop.view", **tiers}]}
        limiter = Limiter.from_settings(settings)
        expect_error(
            "expected a precision that divides the period of '5/second'",
            limiter.reloads.adopt,
            [make_mark("5/second", {}, "shop.view")],
        )
        limiter.reloads.adopt([make_mark("5/hour", {}, "shop.view")])
        (limit,) = limiter.rules.by_name["shop.view"].limits
        assert limit.algorithm.variant == "1m", table


def test_settings_override_the_consistency_of_a_decorator() -> None:
    """Neither its lease nor its consistency is left to conflict with the new one."""
    for own, options, consistency, percent in (
        ({"lease": "5%"}, {"consistency": "exact"}, "exact", 0),
        ({"lease": "5%"}, {"consistency": "leased"}, "leased", 5),
        ({"consistency": "leased"}, {"limits": "200/minute"}, "leased", 2),
        ({"consistency": "exact", "lease": "5%"}, {"consistency": "leased"}, "leased", 5),
        ({"consistency": "exact"}, {"lease": "5%"}, "leased", 5),
    ):
        limiter = Limiter.from_settings({"rules": [{"overrides": "shop.view", **options}]})
        limiter.reloads.adopt([make_mark("100/minute", own, "shop.view")])
        rule = limiter.rules.by_name["shop.view"].source
        assert (rule.consistency, rule.lease_percent) == (consistency, percent), (own, options, consistency)


def test_rules_in_python_have_the_defaults_of_their_settings() -> None:
    """A limiter applies the defaults of its settings to every rule."""
    rules = [Rule(name="a", limits="5/minute"), Rule(name="b", limits="5/minute", **OWN)]
    limiter = Limiter(rules, settings=load_settings(DEFAULTS))
    assert options_of(limiter, "a") == FROM_DEFAULTS
    assert options_of(limiter, "b") == FROM_OWN
    assert limiter.rules.by_name["b"].source is rules[1]


def test_decorators_have_the_defaults_below_their_own_options_and_overrides() -> None:
    """An override in the file comes first, then the decorator, then the defaults."""
    overrides: Any = [{"overrides": "a", "limits": "9/minute"}, {"overrides": "b", "on_store_error": "allow"}]
    limiter = Limiter.from_settings({**DEFAULTS, "rules": overrides})
    marks = [
        make_mark("5/minute", {"name": "a"}, "shop.a"),
        make_mark("5/minute", {"name": "b", **OWN}, "shop.b"),
        make_mark("5/minute", {}, "shop.c"),
    ]
    limiter.reloads.adopt(marks)
    assert options_of(limiter, "a") == options_of(limiter, "shop.c") == FROM_DEFAULTS
    assert str(limiter.rules.by_name["a"].source.quotas[0]) == "9/minute"
    assert options_of(limiter, "b") == (*FROM_OWN[:2], "allow", None)


def test_messages_have_no_outcome_by_default() -> None:
    """``count_when`` does not apply to the messages of a WebSocket, the other defaults do."""
    limiter = Limiter.from_settings(DEFAULTS)
    limiter.reloads.adopt(marks_of(messages("5/minute", name="talk")(lambda: None)).every)
    assert options_of(limiter, "talk") == (*FROM_DEFAULTS[:3], None)


def test_a_rule_can_count_every_request_again() -> None:
    """TOML has no null, so ``status = "any"`` replaces the ``count_when`` of the defaults."""
    rules: Any = [{"name": "all", "limits": "5/minute", "count_when": {"status": "any"}}]
    assert options_of(Limiter.from_settings({**DEFAULTS, "rules": rules}), "all") == (*FROM_DEFAULTS[:3], None)


def test_a_mistake_in_the_defaults_names_its_place() -> None:
    """Defaults are checked on their own, before any rule has them."""
    for defaults, message in (
        ({"keys": ["ip"]}, "defaults.keys: unknown default. Did you mean 'key'?"),
        ({"limits": "5/minute"}, "defaults.limits: unknown default. Expected one of key, algorithm,"),
        ({"key": ["ip", 5]}, "defaults.key[1]: expected a feature"),
        ({"algorithm": "gcr"}, "defaults.algorithm: unknown algorithm 'gcr'"),
        ({"on_store_error": ""}, "defaults.on_store_error: expected 'allow' or 'deny' or 'local'; got ''"),
        (["key"], "defaults: expected a table such as {key = \"user|ip\"}; got ['key']"),
    ):
        expect_error(f"^{re.escape(message)}", load_settings, {"defaults": defaults})


PAIR: Any = {"key": ["user", "ip"]}
TABLE: Any = {"name": "a", "limits": "5/minute", "per_key": {"ann": "9/minute"}}


def test_only_an_error_of_the_defaults_names_them() -> None:
    """With the rule. A rule that is wrong without them has its own error, and a rule that needs them has none."""
    leased: Any = {"consistency": "leased"}
    for defaults, rule, message in (
        (
            PAIR,
            TABLE,
            r"per_key: .* a key of one part\. Use per.*\. The rule has key from \[defaults\]",
        ),
        (
            {"count_when": {"status": 401}},
            {"limits": "5/minute", "lease": "10%"},
            r"with options\. The rule has count_when from \[defaults\]$",
        ),
        ({"key": "user"}, {"limits": "5/minut"}, r"Did you mean '5/minute'\?$"),
        (leased, {"limits": "5/minute", "algorithm": "monthly"}, r"algorithm 'monthly'\. Expected one of [^\[]*$"),
    ):
        expect_error(message, load_settings, {"defaults": defaults, "rules": [rule]})
    message = "^the limit on shop.view: per_key: .* The rule has key from"
    mark = make_mark("5/minute", {"per_key": TABLE["per_key"]}, "shop.view")
    expect_error(message, Limiter.from_settings({"defaults": PAIR}).reloads.adopt, [mark])
    burst: Any = [{"limits": "5/minute burst 9"}]
    assert load_settings({"defaults": {"algorithm": "token-bucket"}, "rules": burst}).rules[0].quotas


def test_a_change_of_a_decorators_rule_may_have_a_schedule_and_a_time_zone() -> None:
    """Both are checked when they are read, although the rule is not known."""
    table: Any = {"overrides": "api", "schedule": {"mon-fri 09:00-17:00": "9/minute"}, "timezone": "Europe/Paris"}
    assert load_settings({"rules": [table]}).amendments["api"].options["timezone"] == "Europe/Paris"
    expect_error(
        r"^rules\[0\] \"api\": timezone: expected a name such as",
        load_settings,
        {"rules": [table | {"timezone": "Mars/Base"}]},
    )
