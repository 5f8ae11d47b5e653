"""Functions of features in every framework: they get its own request, and one function may return several features."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypedDict

import django.http
import flask
import pytest
from calls import http_scope, limited, send_bare
from check_sites import SITES, Site
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, FeatureTypeError, Limiter, Rule
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.testing import ManualClock

everywhere = pytest.mark.parametrize("kind", SITES.values(), ids=list(SITES))
SiteType = type[Site]
TYPES = {"flask": flask.Request, "django": django.http.HttpRequest, "async django": django.http.HttpRequest}


def plans(*names: str, **options: Any) -> Limiter:
    rules = [Rule(name=name, limits="2/minute", key=[name], **options) for name in names]
    return Limiter(rules, clock=ManualClock(1_000_000.0))


def statuses(site: Site, *paths: str) -> list[int]:
    return [site.ask(path).status_code for path in paths]


@pytest.mark.parametrize("name", SITES)
def test_functions_receive_the_request_of_the_framework(name: str) -> None:
    """Feature functions, cost functions and your own response receive what views of the framework know."""
    seen: list[Any] = []

    def see(request: Any, *_: Any) -> Any:
        seen.append(request)
        return 1

    def reject(request: Any, _: Any) -> Any:
        seen.append(request)
        raise LookupError

    limiter = plans("tenant", cost=see)
    site = SITES[name](limiter, features={"tenant": see}, rejection=reject)
    assert statuses(site, "/done", "/done") == [200, 200]
    with suppress(LookupError):
        site.ask("/done")
    assert len(seen) == 7
    assert all(isinstance(request, TYPES.get(name, HTTPConnection)) for request in seen)


def test_an_application_of_no_framework_has_the_request_of_the_package() -> None:
    """Plain ASGI applications need no Starlette."""
    seen: list[Any] = []
    app = limited(_plain, plans("tenant"), features={"tenant": lambda request: seen.append(request) or "a"})
    send_bare(app, http_scope())
    send_bare(app, http_scope(app=object()))  # other frameworks keep their application in the scope too
    assert [type(request) for request in seen] == [ASGIRequest] * 2


async def _plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


Identify = Callable[[Any], Any]


def identities(returned: Any, calls: list[Any], is_async: bool) -> Identify:
    """Return a function that returns these features, and notes its calls."""

    def identify(request: Any) -> Any:
        calls.append(request)
        return returned

    async def aidentify(request: Any) -> Any:
        return identify(request)

    return aidentify if is_async else identify


@everywhere
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_function_returns_several_features(kind: SiteType, is_async: bool) -> None:
    """It is called once per request, even when the view decides more rules."""
    calls: list[Any] = []
    rules = [Rule(name=name, limits="9/minute", key=[name]) for name in ("user", "tenant", "ip")]
    rules.append(Rule(name="post", limits="2/minute", key=["plan", "user"], match={"view": ""}))
    limiter = Limiter(rules, clock=ManualClock(1_000_000.0))
    known = {"user": "ann", "tenant": 7, "plan": "free", "unused": object()}
    site = kind(limiter, features=identities(known, calls, is_async))
    assert statuses(site, *["/check"] * 3) == [200, 200, 429]
    assert len(calls) == 3
    left = limiter.peek({"user": "ann", "tenant": "7", "ip": "192.0.2.7"}, cost=0)
    assert [decision.remaining for decision in left.decisions] == [6, 6, 6]


@everywhere
def test_a_feature_that_is_not_returned_is_missing(kind: SiteType) -> None:
    """None stands for a request of which nothing is known. A built-in feature is then read as usual."""
    for returned in (None, {}, {"tenant": None}):
        site = kind(plans("tenant", "user"), features=lambda _, returned=returned: returned)
        assert statuses(site, *["/done"] * 3) == [200] * 3


@everywhere
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"tennant": 7}, "features: a rule uses the feature 'tenant', and the function returns 'tennant'"),
        ("ann", "features: expected features by name, .* got str"),
        ({"ip": "192.0.2.7"}, "features: the function cannot return 'ip'"),
    ],
)
def test_a_mistake_is_never_a_missing_limit(kind: SiteType, returned: Any, message: str) -> None:
    """A misspelt name, another value than a mapping and a feature of the request itself are errors."""
    site = kind(plans("tenant"), features=lambda _: returned)
    if kind in (SITES["flask"], SITES["django"], SITES["async django"]):
        assert site.ask("/done").status_code == 500
    else:
        with pytest.raises((ConfigError, FeatureTypeError), match=message):
            site.ask("/done")


class Known(TypedDict):
    user: str
    plan: str


def test_annotations_are_checked_at_the_start() -> None:
    """A rule that needs a feature that the annotation lacks stops the start."""

    def identify(request: Any) -> Known:
        return {"user": "ann", "plan": "free"}

    def scalar(request: Any) -> str:
        return "ann"

    limited(_plain, plans("plan"), features=identify)
    with pytest.raises(ConfigError, match="features: a rule uses the feature 'tenant', and"):
        limited(_plain, plans("tenant"), features=identify)
    with pytest.raises(ConfigError, match=r"features: expected a function .* by name; got .* str"):
        limited(_plain, plans("tenant"), features=scalar)
    with pytest.raises(ConfigError, match="features: expected a table of functions by feature, or one function; got 7"):
        limited(_plain, plans("tenant"), features=7)


def test_websockets_have_a_connection() -> None:
    """A handshake has no Request, only an HTTPConnection."""
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    from ratelimit_mw.starlette import RateLimitMiddleware, check

    seen: list[Any] = []

    def identify(connection: HTTPConnection) -> dict[str, object]:
        seen.append(connection)
        return {"tenant": 7}

    async def view(websocket: WebSocket) -> None:
        await websocket.accept()
        await check(websocket, "tenant")

    app = Starlette(routes=[WebSocketRoute("/ws", view)])
    app.add_middleware(RateLimitMiddleware, limiter=plans("tenant"), features=identify)
    assert [kinds(connect(app)) for _ in range(2)] == [["accept"], [1008]]
    assert [type(connection) for connection in seen] == [HTTPConnection] * 2
