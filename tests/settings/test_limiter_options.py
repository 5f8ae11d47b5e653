"""``limits``, ``store``, ``enabled`` and ``[defaults]``, in settings and as arguments of a middleware."""

import asyncio
import re
from typing import Any

import pytest
from flask import Flask
from shared_store import SharedStore
from tables import expect_error

from ratelimit_mw import Limiter, Rule, SettingsDict, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware as ASGIMiddleware
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.http import warnings
from ratelimit_mw.rules import decorators
from ratelimit_mw.rules.decorators import make_mark, messages
from ratelimit_mw.rules.marks import Mark, marks_of
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.stores.url import redacted_url
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

URL = "redis://app:hunter2@cache:6379/0"
RULES: SettingsDict = {"rules": [{"name": "api", "limits": "9/minute"}]}


def nothing(*_: Any) -> Any:
    """An application that is never called."""


def quotas(limiter: Limiter) -> dict[str, list[str]]:
    return {rule.name: [str(limit.quota) for limit in rule.limits] for rule in limiter.rules.rules}


# -- limits ------------------------------------------------------------------------------------------------


def test_limits_are_a_rule_for_all_requests() -> None:
    """The rule is named "default", applies beside the other rules, and has the defaults."""
    limiter = Limiter.from_settings({**RULES, "limits": ["1/min", "5/hr"], "defaults": {"key": "user"}})
    assert quotas(limiter) == {"api": ["9/minute"], "default": ["1/minute", "5/hour"]}
    assert limiter.hit({"user": "ann"}).rules == ("api", "default")
    assert [limiter.hit({"user": "ann"}).rejected_by[0].rule, limiter.hit({"user": "bob"}).allowed] == ["default", True]


def test_a_middleware_needs_no_more_than_limits() -> None:
    """The first minute: one argument. Beside settings the rule is added to theirs."""
    for middleware in (ASGIMiddleware, WSGIMiddleware):
        assert quotas(middleware(nothing, limits="100/minute").limiter) == {"default": ["100/minute"]}
        both = middleware(nothing, RULES, limits="100/minute")
        assert quotas(both.limiter) == {"api": ["9/minute"], "default": ["100/minute"]}, middleware
        given = middleware(nothing, load_settings(RULES), limits=None)
        assert quotas(given.limiter) == {"api": ["9/minute"]}, middleware


def test_limits_of_an_argument_replace_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once and again, even as the text of a variable. Another rule named "default" stays an error."""
    monkeypatch.setenv("LIMITS", "9/minute")
    settings: SettingsDict = {"limits": "5/minute", "defaults": {"key": "user"}}
    for source in (settings, load_settings(settings), WSGIMiddleware(nothing, settings, limits="7/s").limiter.settings):
        limiter = WSGIMiddleware(nothing, source, limits="${LIMITS}").limiter
        assert quotas(limiter) == {"default": ["9/minute"]}
        assert limiter.rules.rules[0].source.entries == (("user",),)


def test_a_mistake_in_limits_is_an_error() -> None:
    """In a file as in an argument."""
    for limits, message in (
        ("5/minut", "limits: cannot parse quota '5/minut'"),
        (["5/minute", "6/minute"], "limits: two limits have the period of"),
        (["5/minute", "x"], "limits[1]: cannot parse quota 'x'"),
        (5, "limits: expected AMOUNT/PERIOD"),
    ):
        expect_error(f"^{re.escape(message)}", load_settings, {"limits": limits})
        expect_error(f"^{re.escape(message)}", WSGIMiddleware, nothing, {}, limits=limits)
    named: Any = {"rules": [{"name": "default", "limits": "1/s"}]}
    taken = "the name 'default' is already used by limits. Give each rule a name"
    expect_error(f'^rules\\[0\\] "default": name: {taken}', load_settings, {**named, "limits": "5/minute"})
    expect_error(f"^rules\\[0\\].name: {taken}", WSGIMiddleware, nothing, named, limits="5/minute")


# -- store -------------------------------------------------------------------------------------------------


def test_a_store_beside_settings_replaces_theirs() -> None:
    """As a URL or as an object: in a dictionary, a limiter and a middleware. Messages name it without its login."""
    store = SharedStore()
    settings: SettingsDict = {**RULES, "store": "memory://?max_keys=7"}
    for limiter in (
        Limiter.from_settings({**settings, "store": store}),
        Limiter.from_settings(settings, store=store),
        WSGIMiddleware(nothing, settings, store=store).limiter,
        ASGIMiddleware(nothing, load_settings(settings), store=store).limiter,
        WSGIMiddleware(nothing, store=store).limiter,
    ):
        assert limiter.store is store
    redis = WSGIMiddleware(nothing, settings, store=URL).limiter
    assert redis.store.name == redacted_url(redis.settings.store) == "redis://cache:6379/0"
    assert quotas(redis) == {"api": ["9/minute"]}
    assert isinstance(Limiter.from_settings(settings).store, MemoryStore)
    assert "hunter2" not in repr(redis.settings)
    assert [redacted_url(each) for each in (open_store(URL), store)] == ["redis://cache:6379/0", "SharedStore"]


def test_a_store_that_is_none_is_an_error() -> None:
    """The message shows no value, which may hold a password."""
    for store, message in (
        ("redis:/cache", "store: a store URL starts with a scheme and ://"),
        (5, "store: expected text"),
        (SharedStore, "store: expected text"),
        (None, "store: expected text; got None. Set it, or leave it out"),
    ):
        expect_error(f"^{re.escape(message)}", WSGIMiddleware, nothing, RULES, store=store)


# -- enabled -----------------------------------------------------------------------------------------------

OFF: SettingsDict = {
    "enabled": False,
    "limits": "1/hour",
    "lists": {"deny": {"ip": ["203.0.113.0/24"]}},
    "store": "redis://127.0.0.1:1/0",
}


def test_nothing_is_limited_without_enabled() -> None:
    """No rule, no list, no decorator, and no connection to the store."""
    store = SharedStore()
    limiter = Limiter.from_settings(OFF, store=store)
    store.start = store.astart = None  # type: ignore[method-assign,assignment] # not called
    limiter.start()
    asyncio.run(limiter.astart())
    limiter.reloads.adopt([make_mark("1/hour", {}, "shop.view")])
    assert all(limiter.hit({"ip": ip}) for ip in ["192.0.2.7"] * 3 + ["203.0.113.7"])
    assert not limiter.hit({"ip": "192.0.2.7"}).decisions
    assert store.calls == 0
    assert quotas(limiter) == {"default": ["1/hour"], "shop.view": ["1/hour"]}
    limiter.reset("default", {"ip": "192.0.2.7"})  # what was counted before can be forgotten
    assert store.calls == 1


@pytest.mark.parametrize(
    ("settings", "options"), [(OFF, {}), ({**OFF, "enabled": True}, {"enabled": False}), (None, {**OFF, "lists": None})]
)
def test_a_switched_off_application_serves_everything(
    settings: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Views with ``@limit`` are served, without headers. The log has one line, so that nobody overlooks it."""
    warnings.warn.cache_clear()
    options = {name: value for name, value in options.items() if value is not None}
    app = Flask("shop")
    app.add_url_rule("/", "home", limit("1/hour")(lambda: "hello"))
    RateLimiter(app, settings, **options)
    client = app.test_client()
    responses = [client.get("/", environ_base={"REMOTE_ADDR": "203.0.113.7"}) for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3
    assert "RateLimit" not in responses[0].headers
    assert len([text for text in caplog.messages if text.startswith(warnings.NOT_ENABLED)]) == 1


@pytest.mark.parametrize("settings", [{}, {"limits": None}, {"lists": {"deny": {"ip": ["192.0.2.7"]}}}, RULES])
@pytest.mark.parametrize("decorator", [None, limit("5/minute"), messages("5/minute")])
def test_the_log_names_a_limiter_without_rules(
    settings: Any, decorator: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a variable of the environment is not set. A list alone, or a decorator, is no mistake."""
    made = set[Mark]()
    for module in (warnings, decorators):
        monkeypatch.setattr(module, "marks_made", made)
    warnings.warn.cache_clear()
    if decorator:
        decorator(lambda: None)
    app = Flask("shop")
    RateLimiter(app, settings, limits=None)
    app.test_client().get("/")
    expected = settings.keys() <= {"limits"} and decorator is None
    assert len([text for text in caplog.messages if text.startswith(warnings.NO_RULES)]) == expected


def test_switched_off_settings_are_checked() -> None:
    """A mistake shows before the day on which the limits are switched on again."""
    expect_error(r"^rules\[0\]: limits: cannot parse", load_settings, {"enabled": False, "rules": [{"limits": "x"}]})


# -- arguments that do not go together ---------------------------------------------------------------------


def test_arguments_that_do_not_go_together_are_an_error() -> None:
    """The message names the argument, and what to write."""
    for options, message in (
        ({}, 'give the middleware either limits="100/minute", settings="ratelimit.toml" or limiter=Limiter'),
        ({"trusted_proxies": []}, "give the middleware either limits="),
        ({"limits": None}, "give the middleware either limits="),
        ({"rules": []}, "rules: not an argument of the middleware"),
        (
            {"settings": "100/minute"},
            "100/minute: unknown file type ''. Expected .toml, .json, .yaml, .yml. For limits",
        ),
        ({"limiter": Limiter(), "settings": RULES}, "give the middleware either settings or a limiter"),
        ({"limiter": Limiter(), "limits": "5/minute"}, "limits: the limiter has its own. Pass it to the limiter"),
        ({"limiter": Limiter(), "store": URL}, "store: the limiter has its own"),
        ({"limiter": Limiter(), "enabled": False}, "enabled: the limiter has its own"),
        ({"limiter": "redis://"}, "limiter: expected a Limiter; got 'redis://'"),
        ({"settings": 5}, "settings: expected the path of a file or a dictionary; got 5"),
    ):
        expect_error(f"^{re.escape(message)}", WSGIMiddleware, nothing, **options)


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


def test_rules_have_the_defaults_of_their_settings() -> None:
    """Those in Python, too. A rule keeps what it sets, even where the value is the package's own default."""
    rules: Any = [{"name": "a", "limits": "5/minute burst 2"}, {"name": "b", "limits": "5/minute", **OWN}]
    in_python = [Rule(name="a", limits="5/minute"), Rule(**rules[1])]
    limiter = Limiter(in_python, settings=load_settings(DEFAULTS))
    for each in (Limiter.from_settings({**DEFAULTS, "rules": rules}), limiter):
        assert options_of(each, "a") == FROM_DEFAULTS
        assert options_of(each, "b") == FROM_OWN
    assert limiter.rules.by_name["b"].source is in_python[1]


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
        ({**exact, "lease": "5%", "mode": "shadow"}, ("exact", 0), ("exact", 0)),
        ({"limits": ["100/s", "2 concurrent"]}, ("exact", 0), ("leased", 2)),
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
    """Beside "exact", a lease has no effect, whoever has written either."""
    for own, options, consistency, percent in (
        ({"lease": "5%"}, {"consistency": "exact"}, "exact", 0),
        ({"lease": "5%"}, {"consistency": "leased"}, "leased", 5),
        ({"consistency": "leased"}, {"limits": "200/minute"}, "leased", 2),
        ({"consistency": "exact", "lease": "5%"}, {"consistency": "leased"}, "leased", 5),
        ({"consistency": "exact"}, {"lease": "5%"}, "exact", 0),
    ):
        limiter = Limiter.from_settings({"rules": [{"overrides": "shop.view", **options}]})
        limiter.reloads.adopt([make_mark("100/minute", own, "shop.view")])
        rule = limiter.rules.by_name["shop.view"].source
        assert (rule.consistency, rule.lease_percent) == (consistency, percent), (own, options, consistency)


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
    limiter.reloads.adopt(marks_of(messages("5/minute", name="talk")(lambda: None)).all_marks)
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
