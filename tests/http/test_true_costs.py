"""``cost_from`` in every framework: a header of the response has the true cost, which is settled at its end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from calls import ask as ask_asgi
from calls import ask_wsgi
from django.http import HttpResponse
from django.urls import path as django_path
from django_calls import MIDDLEWARE, project
from outcome_scene import BY_SETTINGS, BY_VIEW, REST, Ask
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.notes import log_note
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.testing import ManualClock, limits_off
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

ALL = {
    **{f"{name} by settings": (ask, False) for name, ask in BY_SETTINGS.items()},
    **{f"{name} by view": (ask, True) for name, ask in BY_VIEW.items()},
    "throttle": (REST, False),
}
HEADER = "x-tokens-used"
TOKENS: Any = {"cost": "header:x-estimate|40", "cost_from": {"header": "X-Tokens-Used"}, "unit": "tokens"}
REMOVED: Any = {**TOKENS, "cost_from": {"header": HEADER, "remove": True}}
FREE: Any = {**TOKENS, "count_unless": {"status": "4xx"}}
WHO = {"ip": "192.0.2.7", "user": "ann", "scope": "login"}
everywhere = pytest.mark.parametrize(("ask", "is_of_view"), ALL.values(), ids=list(ALL))


def send(ask: Ask, is_of_view: bool, path: str, options: Any = TOKENS) -> tuple[Any, int]:
    """Return the headers of one response, and what is left of 1,000 tokens a minute; -1 while limits are off."""
    rule: Any = {"name": "login", "limits": "1000/minute", **options}
    match = {"match": {"scope": "login"}} if ask is REST else {}
    limiter = Limiter([] if is_of_view else [Rule(**rule, **match)], SharedStore(), ManualClock(1_000_000.0))
    headers = ask(limiter, rule if is_of_view else {}, path, "GET").headers
    decisions = limiter.decide(Plan(limiter.rules.rules), WHO, 0, consume=False).decisions
    return headers, decisions[0].remaining if decisions else -1


@everywhere
def test_the_true_cost_is_settled(ask: Ask, is_of_view: bool) -> None:
    """The estimate is in the headers. The header with the true cost stays, and a stream is settled at its end."""
    for path, left in [
        ("/200/used=150", 850),
        ("/200/used=0", 1000),
        ("/500/used=12.5", 987),
        ("/200/used=1200", 0),
        ("/200/stream=7", 993),
        ("/200/plain", 960),
    ]:
        headers, remaining = send(ask, is_of_view, path)
        assert (headers.get(HEADER, ""), headers["x-ratelimit-remaining"]) == (path.partition("=")[2], "960")
        assert remaining == left, path
        assert 'q=1000;qu="tokens";w=60' in headers["ratelimit-policy"]


@everywhere
@pytest.mark.parametrize("how", ["used=150", "stream=150"])
def test_the_header_is_removed(ask: Ask, is_of_view: bool, how: str) -> None:
    """With ``remove`` the client does not receive it. Other headers stay."""
    headers, left = send(ask, is_of_view, f"/200/{how}", REMOVED)
    assert (HEADER in headers, headers["x-other"], left) == (False, "kept", 850)


@everywhere
def test_a_response_that_does_not_count_has_no_cost(ask: Ask, is_of_view: bool) -> None:
    """The outcome takes precedence over the header."""
    assert send(ask, is_of_view, "/404/used=150", FREE)[1] == 1000
    assert send(ask, is_of_view, "/200/used=150", FREE)[1] == 850


@pytest.mark.parametrize("used", ["many", "-1", "nan", "inf", "5, 7", "None"])
@pytest.mark.parametrize("name", BY_SETTINGS)
def test_a_header_without_a_number_keeps_the_estimate(name: str, used: str, caplog: pytest.LogCaptureFixture) -> None:
    """One log message names the rule and the header, and not the value."""
    log_note.cache_clear()
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert send(BY_SETTINGS[name], False, f"/200/used={used}")[1] == 960
        assert send(BY_SETTINGS[name], False, f"/200/used={used}")[1] == 960
    said = [text for text in caplog.messages if HEADER in text]
    assert said == [
        "rule login: the header x-tokens-used is not a number from 0, so its responses keep their estimated cost"
    ]


@pytest.mark.parametrize("name", BY_SETTINGS)
def test_while_limits_are_off_nothing_is_settled(name: str) -> None:
    """A test without limits reads the same response as a client, without the removed header."""
    with limits_off():
        headers, _ = send(BY_SETTINGS[name], False, "/200/used=150", REMOVED)
    assert (HEADER in headers, headers["x-other"]) == (False, "kept")


# -- several layers ---------------------------------------------------------------------------------------------


def limiter(name: str, **options: Any) -> Limiter:
    rule = Rule(name=name, limits="1000/minute", **{**REMOVED, **options})
    return Limiter([rule], clock=ManualClock(1_000_000.0))


def left(rate: Limiter, **features: Any) -> int:
    return rate.peek({"ip": "192.0.2.7", **features}, cost=0).decisions[0].remaining


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"X-Tokens-Used", b"150"), (b"x-tokens-used", b"20")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def wsgi(environ: Any, start_response: Any) -> Any:
    """Start the response when the server asks for the first part."""
    start_response("200 OK", [("X-Tokens-Used", "150"), ("x-tokens-used", "20")])
    yield b"hello"


@pytest.mark.parametrize("protocol", ["asgi", "wsgi"])
def test_outer_limits_settle_by_a_header_that_inner_ones_remove(protocol: str) -> None:
    """Two limiters around one application have the same true cost: the largest of several lines."""
    outer, inner = limiter("outer"), limiter("inner")
    app: Any
    if protocol == "asgi":
        app = RateLimitMiddleware(RateLimitMiddleware(asgi, limiter=inner), limiter=outer)
        response = ask_asgi(app)
    else:
        app = WSGIMiddleware(WSGIMiddleware(wsgi, limiter=inner), limiter=outer)
        response = ask_wsgi(app)
    assert HEADER not in response.headers
    assert (left(outer), left(inner)) == (850, 850)


@pytest.mark.parametrize("protocol", ["asgi", "wsgi"])
def test_both_stages_settle(protocol: str) -> None:
    """Of two middlewares with the same settings, the outer one counts by IP address, the inner one by user."""
    settings: Any = {
        "rules": [
            {"name": "by-ip", "limits": "1000/minute", **REMOVED},
            {"name": "by-user", "limits": "1000/minute", "key": ["user"], **REMOVED},
        ]
    }
    inner: Any
    if protocol == "asgi":
        inner = RateLimitMiddleware(asgi, settings, features={"user": lambda request: "ann"})
        outer: Any = RateLimitMiddleware(inner, limiter=inner.limiter, features={"user": lambda request: None})
        response = ask_asgi(outer)
    else:
        inner = WSGIMiddleware(wsgi, settings, features={"user": lambda request: "ann"})
        outer = WSGIMiddleware(inner, limiter=inner.limiter)
        response = ask_wsgi(outer)
    assert HEADER not in response.headers
    verdict = inner.limiter.peek({"ip": "192.0.2.7", "user": "ann"}, cost=0)
    assert [decision.remaining for decision in verdict.decisions] == [850, 850]


def signs_in(get_response: Any) -> Any:
    """Django middleware that sets ``request.user``."""

    def call(request: Any) -> Any:
        request.user = type("User", (), {"is_authenticated": True, "pk": "ann"})
        return get_response(request)

    return markcoroutinefunction(call) if iscoroutinefunction(get_response) else call


signs_in.sync_capable = signs_in.async_capable = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_async", [False, True])
def test_two_entries_of_django_settle(is_async: bool) -> None:
    """The inner entry decides by user and removes the header. The outer one settles its rule by the same number."""
    rules = [Rule(name=key, limits="1000/minute", key=[key], **REMOVED) for key in ("ip", "user")]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    layers = [*MIDDLEWARE, f"{__name__}.signs_in", *MIDDLEWARE]
    view = django_path("", lambda request: HttpResponse(headers={"X-Tokens-Used": "150"}))
    with project(rate, view, is_async=is_async, middleware=layers) as served:
        response = served.ask()
    assert HEADER not in response.headers
    verdict = rate.peek({"ip": "192.0.2.7", "user": "ann"}, cost=0)
    assert [decision.remaining for decision in verdict.decisions] == [850, 850]
