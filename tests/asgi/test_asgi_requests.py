"""The ASGI middleware reads state, mounts, method, path and features of requests."""

import asyncio
from typing import Any

import pytest
from asgi_checker import App, Receive, Scope, Send
from calls import (
    OK,
    http_scope,
    limited,
    limiter,
    send_bare,
    statuses,
)
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, BaseUser, SimpleUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

# -- state -------------------------------------------------------------------------------------------------


def test_the_verdict_is_in_the_state() -> None:
    """``scope["state"]["ratelimit"]`` is the verdict. The middleware reuses a state that the server made."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await OK(scope, receive, send)

    original = http_scope(state={"db": 1})
    send_bare(limited(app), original)
    send_bare(limited(app), http_scope())
    assert scopes[0]["state"] is original["state"]
    assert [scope["state"]["ratelimit"].decisions[0].remaining for scope in scopes] == [1, 1]


def test_a_shared_state_is_that_of_the_request() -> None:
    """Some servers give every request the same state. An earlier verdict is not shown, and skips no decision."""
    verdicts: list[Verdict] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        verdicts.append(scope["state"]["ratelimit"])
        await OK(scope, receive, send)

    state: dict[str, Any] = {}
    guarded = limited(app, limiter("1/minute", match={"path": "/api"}))
    sent = [send_bare(guarded, http_scope(path=path, state=state))[0] for path in ("/api", "/free", "/api")]
    assert [start["status"] for start in sent] == [200, 200, 429]
    assert [verdict.rules for verdict in verdicts] == [("api",), ()]


# -- several middlewares -----------------------------------------------------------------------------------


def test_a_mounted_middleware_decides_once_with_the_full_path() -> None:
    """Inside a Starlette mount, rules match the whole path. The outer middleware decides for both."""
    rate = limiter("1/minute", match={"path": "/sub/items"})
    inner = Starlette(routes=[Route("/items", lambda request: PlainTextResponse("items"))])
    alone = Starlette(routes=[Mount("/sub", app=RateLimitMiddleware(inner, limiter=rate))])
    assert statuses(alone, 2, path="/sub/items") == [200, 429]
    rate = limiter("2/minute", match={"path": "/sub/items"})
    both = Starlette(
        routes=[Mount("/sub", app=RateLimitMiddleware(inner, limiter=rate))],
        middleware=[Middleware(RateLimitMiddleware, limiter=rate)],
    )
    assert statuses(both, 3, path="/sub/items") == [200, 200, 429]


def test_middleware_outside_sees_the_route() -> None:
    """It reads in its scope what the router adds, at the start of a response and after an error."""
    seen: list[Any] = []

    class Metrics(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            try:
                return await call_next(request)
            finally:
                seen.append((request.path_params, request.scope["endpoint"].__name__))

    inner = [Route("/{name}", lambda request: PlainTextResponse()), Route("/a/b", min)]
    twice = [Middleware(RateLimitMiddleware, limiter=limiter("9/minute"))] * 2
    app = Starlette(routes=[Mount("/sub", routes=inner)], middleware=[Middleware(Metrics), *twice])
    assert statuses(app, 1, path="/sub/a") == [200]
    with pytest.raises(TypeError):
        statuses(app, 1, path="/sub/a/b")
    assert seen == [({"name": "a"}, "<lambda>"), ({}, "min")]


def test_a_scope_that_comes_again_is_another_request() -> None:
    """Middleware outside may try again: the request is read and decided again."""
    app = RateLimitMiddleware(OK, limiter=limiter("1/minute", key=["json:a"]))
    scope = http_scope(method="POST", headers=[(b"content-type", b"application/json")])
    bodies = [b'{"a": %d}' % number for number in (1, 2, 1)]
    sent = [send_bare(app, scope, [{"type": "http.request", "body": body}])[0] for body in bodies]
    assert [start["status"] for start in sent] == [200, 200, 429]
    assert all(b"ratelimit" in dict(start["headers"]) for start in sent)


def test_a_scope_may_come_again_at_the_same_time() -> None:
    """Middleware outside may hedge a request: each call is decided."""
    app = RateLimitMiddleware(OK, limiter=limiter("1/minute"))
    scope, sent = http_scope(), []

    async def send(message: Any) -> None:
        sent.append(message.get("status"))
        await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(app(scope, asyncio.Event().wait, send) for _ in range(2)))  # type: ignore[arg-type]

    asyncio.run(both())
    assert sorted(filter(None, sent)) == [200, 429]


# -- method and path ---------------------------------------------------------------------------------------


@each(
    ("scope", "path"),
    [
        ({"path": "/items"}, "/items"),
        ({"path": "/items", "root_path": None}, "/items"),
        ({"path": "/api/items", "root_path": "/api"}, "/items"),
        ({"path": "/api", "root_path": "/api"}, "/"),
        ({"path": "/apikeys", "root_path": "/api"}, "/apikeys"),
        ({"path": "/items", "root_path": "/api"}, "/items"),
        ({"path": "/sub/items", "root_path": "/sub", "app_root_path": ""}, "/sub/items"),
        ({"path": "/api/sub/items", "root_path": "/api/sub", "app_root_path": "/api"}, "/sub/items"),
    ],
)
def test_rules_match_the_path_without_the_root_path(scope: dict[str, Any], path: str) -> None:
    """Rules ignore the prefix where the server mounts the application. They include the application's own mounts."""
    app = limited(OK, limiter("1/minute", match={"path": path}))
    assert [send_bare(app, http_scope(**scope))[0]["status"] for _ in range(2)] == [200, 429]


# -- features ----------------------------------------------------------------------------------------------


def user_with(**attributes: Any) -> BaseUser:
    """Return a user that is signed in. An attribute that is not given is one that ``BaseUser`` does not have."""
    user: BaseUser = type("User", (BaseUser,), {"is_authenticated": True, **attributes})()
    return user


USERS = {
    "ann": SimpleUser("ann"),
    "john-1": user_with(identity="1", display_name="John Smith"),
    "john-2": user_with(identity="2", display_name="John Smith"),
    "guest": user_with(identity="", display_name="guest"),
    "nameless": user_with(),
    "anonymous": UnauthenticatedUser(),
    "left": user_with(display_name="guest", is_authenticated=False),
}


async def authenticate(connection: HTTPConnection) -> tuple[AuthCredentials, Any] | None:
    name = connection.headers.get("x-who")
    return None if name is None else (AuthCredentials(), USERS[name])


def test_the_user_is_the_authenticated_user_of_starlette() -> None:
    """The identity counts, then the display name. A user with neither, or not signed in, is missing."""
    backend = type("Backend", (), {"authenticate": staticmethod(authenticate)})()
    rate = Limiter([Rule(name="user", limits="1/minute", key=["user"])], clock=ManualClock(1.0))
    app = AuthenticationMiddleware(RateLimitMiddleware(OK, limiter=rate), backend=backend)
    codes = {user: statuses(app, 2, headers={"x-who": user}) for user in USERS}
    counted, unknown = [200, 429], [200, 200]
    assert codes == dict(zip(USERS, [counted] * 4 + [unknown] * 3, strict=True))
    assert statuses(app, 2) == unknown
    assert not rate.peek({"user": "1"}).allowed


@each("opaque", [False, True])
def test_an_encoded_slash_has_a_plan_of_its_own(opaque: bool) -> None:
    """Two paths that decode to one are different requests, whichever comes first."""
    rate = limiter("1/minute", key=[], match={"path": "/files/*"})
    app: App = RateLimitMiddleware(OK, limiter=rate)
    if opaque:  # Starlette does not know the routes below the mount
        app = RateLimitMiddleware(Starlette(routes=[Mount("/files", app=OK)]), limiter=rate)
    sent = [(b"/files/a/b", 200), (b"/files/a%2Fb", 200), (b"/files/a/b", 200), (b"/files/a%2Fb", 429)]
    for raw, status in sent:
        assert send_bare(app, http_scope(path="/files/a/b", raw_path=raw))[0]["status"] == status


def test_an_ambiguous_path_is_exact_where_the_route_is() -> None:
    """The framework has found the only path of the route, so rules of other readings do not count."""
    paths = ("/a", "/a/b", "/b")
    rules = [Rule(name=path, limits="5/minute", key=[], match={"path": path}, unrouted=True) for path in paths]
    seen: list[tuple[str, ...]] = []

    async def view(request: Any) -> PlainTextResponse:
        seen.append(request.state.ratelimit.rules)
        return PlainTextResponse("")

    app = RateLimitMiddleware(Starlette(routes=[Route("/a/../b", view), Route("/{x}/y", view)]), limiter=Limiter(rules))
    send_bare(app, http_scope(path="/a/../b", raw_path=b"/a/../b"))
    send_bare(app, http_scope(path="/a\n/y", raw_path=b"/a%0A/y"))
    assert seen == [(), ("/a",)]
