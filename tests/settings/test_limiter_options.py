"""``limits``, ``store`` and ``enabled``: in the settings, and as arguments of a middleware beside the settings."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest
from flask import Flask
from shared_store import SharedStore
from tables import expect_error

from ratelimit_mw import Limiter, SettingsDict, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware as ASGIMiddleware
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.http import warnings
from ratelimit_mw.rules.decorators import make_mark
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
    named: Any = {"rules": [{"name": "default", "limits": "1/s"}]}
    for limits, rest, message in (
        ("5/minut", {}, "limits: cannot parse quota '5/minut'"),
        (["5/minute", "6/minute"], {}, "limits: two limits have the period of"),
        (["5/minute", "x"], {}, "limits[1]: cannot parse quota 'x'"),
        (5, {}, "limits: expected AMOUNT/PERIOD"),
        ("5/minute", named, "limits: they have the name 'default', as one of your rules. Give that one another name"),
    ):
        for build in (partial(load_settings, {**rest, "limits": limits}), partial(WSGIMiddleware, nothing, rest)):
            expect_error(f"^{re.escape(message)}", build, **({} if build.func is load_settings else {"limits": limits}))


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
    assert [record.message for record in caplog.records].count(warnings.NOT_ENABLED) == 1


@pytest.mark.parametrize("settings", [{}, {"limits": None}, {"lists": {"deny": {"ip": ["192.0.2.7"]}}}, RULES])
def test_the_log_names_a_limiter_without_rules(
    settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a variable of the environment is not set. A list alone is no mistake."""
    monkeypatch.setattr(warnings, "marks_made", set())
    warnings.warn.cache_clear()
    app = Flask("shop")
    RateLimiter(app, settings, limits=None)
    app.test_client().get("/")
    expected = settings.keys() <= {"limits"}
    assert ([record.message for record in caplog.records].count(warnings.NO_RULES) == 1) is expected


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
        ({"rules": []}, 'rules: not an argument of the middleware. Pass settings={"rules": ...}'),
        (
            {"settings": "100/minute"},
            "100/minute: unknown file type ''. Expected .toml, .json, .yaml, .yml. For limits",
        ),
        ({"limiter": Limiter(), "settings": RULES}, "give the middleware either settings or a limiter"),
        ({"limiter": Limiter(), "limits": "5/minute"}, "limits: the limiter has its own. Pass it to the limiter"),
        ({"limiter": Limiter(), "store": URL}, "store: the limiter has its own"),
        ({"limiter": Limiter(), "enabled": False}, "enabled: the limiter has its own"),
        ({"limiter": "redis://"}, "limiter: expected a Limiter; got 'redis://'"),
        ({"settings": 5}, "settings: expected the path of a file, a dictionary or Settings; got 5"),
    ):
        expect_error(f"^{re.escape(message)}", WSGIMiddleware, nothing, **options)
