"""What one function of several features declares and returns, and the request that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from calls import http_scope, limited, send_bare
from starlette.authentication import SimpleUser
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket
from tables import each
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.testing import ManualClock


def plans(*names: str, **options: Any) -> Limiter:
    rules = [Rule(name=name, limits="2/minute", key=[name], **options) for name in names]
    return Limiter(rules, clock=ManualClock(1_000_000.0))


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


class Known(TypedDict, total=False):
    user: str
    plan: str


class Tenant(Known, total=False):
    tenant: int | None


def undeclared(request: Any) -> Any:
    return {"user": "ann", "usr": "ann", "plan": "free"}


def known(request: Any) -> Known:
    return {"user": "ann", "plan": "free"}


async def aknown(request: Any) -> Known | None:
    return None


@each("kind", ["allow", "deny"])
def test_a_list_by_a_feature_that_nothing_declares_stops_the_start(kind: str) -> None:
    """The list would have no effect."""
    settings: Any = {"rules": [], "lists": {kind: {"tenant": ["acme"]}}}
    message = rf"lists.{kind}.tenant: uses the feature 'tenant', but nothing provides it. Annotate the function"
    with pytest.raises(ConfigError, match=message):
        limited(_plain, Limiter.from_settings(settings), features=known)


def test_annotations_are_checked_at_the_start() -> None:
    """The annotation declares what the function returns: features by name, and none that the request itself has."""

    class Own(TypedDict):
        ip: str

    def scalar(request: Any) -> str:
        return "ann"

    def own(request: Any) -> Any: ...

    own.__annotations__["return"] = Own
    limited(_plain, plans("plan"), features=known)
    with pytest.raises(ConfigError, match=r"features: expected a function .* by name; got .* str"):
        limited(_plain, plans("tenant"), features=scalar)
    with pytest.raises(ConfigError, match="features: the function cannot return 'ip', which is read from the request"):
        limited(_plain, plans("ip"), features=own)
    with pytest.raises(ConfigError, match="features: expected a table of functions by feature, or one function; got 7"):
        limited(_plain, plans("tenant"), features=7)


@each(("returned", "statuses"), [({"user": None}, [200, 200, 200]), ({}, [200, 200, 429])])
def test_none_is_no_user(returned: Any, statuses: list[int]) -> None:
    """A function that returns None for a feature says that it is missing. One that leaves it out says nothing."""
    app = limited(_plain, plans("user"), features=lambda request: returned)
    assert [send_bare(app, http_scope(user=SimpleUser("ann")))[0]["status"] for _ in range(3)] == statuses


def test_a_similar_name_in_a_request_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """No request fails because of what the function returns for one client. The log has the two names once."""
    app = limited(_plain, plans("user"), features=lambda request: {"users": 3, "unused": 1})
    assert [send_bare(app, http_scope())[0]["status"] for _ in range(3)] == [200] * 3
    expected = "the function of features returns 'users', but a rule uses 'user'. If one is a typo, fix it"
    assert [message for message in caplog.messages if "returns" in message] == [expected]


def test_websockets_have_a_connection() -> None:
    """A handshake has no Request, only an HTTPConnection."""
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    from ratelimit_mw.starlette import RateLimitMiddleware, check

    seen: list[Any] = []

    def identify(connection: HTTPConnection) -> Tenant:
        seen.append(connection)
        return {"tenant": 7}

    async def view(websocket: WebSocket) -> None:
        await websocket.accept()
        await check(websocket, "tenant")

    app = Starlette(routes=[WebSocketRoute("/ws", view)])
    app.add_middleware(RateLimitMiddleware, limiter=plans("tenant"), features=identify)
    assert [kinds(connect(app)) for _ in range(2)] == [["accept"], [1008]]
    assert [type(connection) for connection in seen] == [HTTPConnection] * 2
