"""IP addresses that no client can have raise an error when the key of the rule is known."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask
from starlette.routing import Route
from starlette_apps import application, hello
from tables import case, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.starlette import limit
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware

PREFIX = r"IPv6 clients are counted per /64 \(ipv6_prefix = 64\)"
NEVER = rf"2001:db8::1/128 never matches: {PREFIX}. Write '2001:db8::/64'"
ONE = r".* is a network, not a client. Write a rule with match = "
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"match": {"ip": "2001:db8::1"}}, f"match.ip: {NEVER}"),
    ({"match": {"ip": ["10.0.0.0/8", "2001:db8::1"]}}, f"match.ip: {NEVER}"),
    (
        {"per_key": {"2001:db8::1": "9/s"}},
        rf"per_key\['2001:db8::1'\]: 2001:db8::1 never matches: {PREFIX}. Write '2001:db8::/64'",
    ),
    ({"per_key": {"2001:db8::/48": "9/s"}}, rf"per_key\['2001:db8::/48'\]: {ONE}"),
    ({"per_key": {"10.0.0.0/8": "9/s"}}, rf"per_key\['10.0.0.0/8'\]: {ONE}"),
    ({"per_key": {"::ffff:10.0.0.0/104": "9/s"}}, rf"per_key\['::ffff:10.0.0.0/104'\]: {ONE}"),
    ({"per_key": {"192.0.2.7/32": "9/s"}}, r"per_key\['192.0.2.7/32'\]: not in canonical form. Write '192.0.2.7'"),
    ({"per_key": {"2001:DB8::/64": "9/s"}}, r"per_key\['2001:DB8::/64'\]: .*. Write '2001:db8::/64'"),
    ({"per_key": {"2001:db8::1/64": "9/s"}}, r"per_key\['2001:db8::1/64'\]: .*. Write '2001:db8::/64'"),
    ({"per_key": {"fe80::1%eth0": "9/s"}, "key": "user|ip"}, r"per_key\['fe80::1%eth0'\]: .*. Write 'fe80::/64'"),
    ({"per": {"ip": {"2001:db8::1": "9/s"}}}, r"per.ip\['2001:db8::1'\]: .*. Write '2001:db8::/64'"),
    ({"per": {"ip": {"10.0.0.0/8": "9/s"}}, "key": "user"}, rf"per.ip\['10.0.0.0/8'\]: {ONE}"),
]
RIGHT: list[dict[str, Any]] = [
    {"match": {"ip": ["2001:db8::/64", "2001:db8::/32", "10.1.2.3", "::ffff:10.1.2.3"]}},
    {"per_key": {"2001:db8::/64": "9/s", "10.1.2.3": "9/s", "::ffff:10.1.2.4": "9/s", "unknown": "9/s"}},
    {"per_key": {"client-42": "9/s"}, "key": "user|ip"},
    {"per_key": {"2001:db8::1": "9/s", "10.0.0.0/8": "9/s"}, "key": "header:x-net"},
    {"per": {"net": {"10.0.0.0/8": "9/s"}, "ip": {"10.1.2.3": "9/s"}}},
]


def rule_options(rule: dict[str, Any]) -> dict[str, Any]:
    return {"limits": "1/minute", **rule}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_an_impossible_ip_address_is_rejected() -> None:
    """Settings show the path. The middleware checks the rules of a limiter, and the first request checks decorators."""
    for rule, message in WRONG:
        expect_error(rf"^rules\[1\]: {message}", load_settings, {"rules": [{"limits": "1/s"}, rule_options(rule)]})
        limiter = Limiter([Rule(name="api", **rule_options(rule))])
        for middleware in (RateLimitMiddleware, WSGIMiddleware):
            expect_error(rf"^rule 'api': {message}", middleware, app, limiter=limiter)
        expect_error(
            rf"^{__file__}:\d+: rule 'starlette_apps\.hello': {message}",
            ask,
            application([Route("/", limit(**rule_options(rule))(hello))]),
        )


def test_an_impossible_ip_address_in_an_override_is_rejected() -> None:
    """The check runs when settings are loaded, if they set the key, or else with the decorator."""
    for rule, message in WRONG:
        replacing = {"rules": [{"overrides": "login", "key": "ip", **rule}]}
        expect_error(rf"^rules\[0\] .login.: {message}", load_settings, replacing)
        view = limit("5/s", name="login", key=rule.get("key", "ip"))(hello)
        pattern = rf"^(rules\[0\] .login.: |{__file__}:\d+: rule .login.: ){message}"
        settings: Any = {"rules": [{"overrides": "login", **rule}]}
        with case(rule), pytest.raises(ConfigError, match=pattern):
            ask(application([Route("/", view)], limiter=Limiter.from_settings(settings)))


def test_an_override_may_have_a_key_with_other_values() -> None:
    """A table in an override belongs to the key of the decorator."""
    settings = {"rules": [{"overrides": "login", "per_key": {"2001:db8::1": "2/s"}}]}
    view = limit("1/s", name="login", key="header:x-net")(hello)
    app = application([Route("/", view)], limiter=Limiter.from_settings(settings))
    assert ask(app, headers={"x-net": "2001:db8::1"}).headers["x-ratelimit-limit"] == "2"


def test_possible_values_of_features_are_accepted() -> None:
    """The check applies only to text that parses as an IP address, and only for IP features."""
    for rule in RIGHT:
        assert load_settings({"rules": [rule_options(rule)]}).rules
        features = {"net": lambda request: None}
        assert RateLimitMiddleware(app, limiter=Limiter([Rule(**rule_options(rule))]), features=features)


def test_the_check_uses_the_prefix_of_the_settings_and_of_the_middleware() -> None:
    """With prefix 128 each IPv6 address is its own client. A list or rule that an argument disables stops the start."""
    rule = rule_options({"match": {"ip": "2001:db8::1"}, "per_key": {"2001:db8::1": "9/s"}})
    assert load_settings({"ipv6_prefix": 128, "rules": [rule]}).rules
    for settings, message in (
        ({"lists": {"deny": {"ip": ["2001:db8::/64"]}}}, r"lists\.deny\.ip: .* per /48 .*. Write '2001:db8::/48'"),
        ({"lists": {"allow": {"ip": ["2001:db8::/64"]}}}, r"lists\.allow\.ip: .* per /48 "),
        ({"rules": [rule_options({"match": {"ip": "2001:db8::/64"}})]}, r"rule 'rule-1': match\.ip: .* per /48 "),
        (
            {"rules": [rule_options({"per_key": {"2001:db8::/64": "9/s"}})]},
            r"rule 'rule-1': per_key\[.*. Write '2001:db8::/48",
        ),
    ):
        for middleware in (RateLimitMiddleware, WSGIMiddleware):
            expect_error(f"^{message}", middleware, app, settings=settings, ipv6_prefix=48)
            assert middleware(app, settings=settings, ipv6_prefix=64)


def test_a_custom_ip_feature_may_be_any_text() -> None:
    """A feature function for ``ip`` may return any text."""
    rule = Rule(**rule_options({"match": {"ip": "2001:db8::1"}}))
    guarded = RateLimitMiddleware(app, limiter=Limiter([rule]), features={"ip": lambda request: "2001:db8::1"})
    assert [ask(guarded).status_code for _ in range(2)] == [200, 429]
