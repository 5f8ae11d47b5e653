"""``cost_from`` in several layers of limits: each settles the true cost, and the header is removed once."""

from __future__ import annotations

from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from calls import ask as ask_asgi
from calls import ask_wsgi
from django.http import HttpResponse
from django.urls import path as django_path
from django_calls import MIDDLEWARE, project
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

HEADER = "x-tokens-used"
TOKENS: Any = {"cost": "header:x-estimate|40", "cost_from": {"header": "X-Tokens-Used"}, "unit": "tokens"}
REMOVED: Any = {**TOKENS, "cost_from": {"header": HEADER, "remove": True}}


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


@each("protocol", ["asgi", "wsgi"])
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


@each("protocol", ["asgi", "wsgi"])
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


@each("is_async", [False, True])
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
