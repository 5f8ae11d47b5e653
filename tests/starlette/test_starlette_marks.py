"""``@limit`` and ``@exempt`` on functions, classes and methods, above and below other decorators."""

from __future__ import annotations

import functools
from typing import Any

from calls import BODY, START, ask, sending
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette_apps import application, hello, statuses, synchronous
from tables import each

from ratelimit_mw.starlette import limit


class Views:
    @limit("2/minute")
    async def view(self, request: Any) -> Response:
        return PlainTextResponse("view")


@each("view", [synchronous, functools.partial(synchronous), Views().view])
def test_a_decorated_view_is_limited(view: Any) -> None:
    """A sync function, a partial, and a bound method, which has the decorator on its function."""
    assert statuses(application([Route("/", view)]), "/", "/", "/") == [200, 200, 429]


def test_an_overriding_method_keeps_the_limit() -> None:
    """A subclass has the limits of the methods that it overrides and its own limits. It may call ``super``."""

    class Limited(HTTPEndpoint):
        @limit("1/minute", key=["ip"])
        async def get(self, request: Any) -> Response:
            return PlainTextResponse("get")

    class Overriding(Limited):
        @limit("5/minute", name="own")
        async def get(self, request: Any) -> Response:
            return await super().get(request)

    app = application([Route("/", Overriding)])
    responses = [ask(app) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert responses[0].headers["ratelimit-policy"].endswith('"own";q=5;w=60')


def test_a_view_on_two_routes_has_one_count_without_endpoint_in_its_key() -> None:
    """A limit belongs to its view. With ``endpoint`` in the key, each route has its own count."""
    each, both = (limit("1/minute", key=key)(hello) for key in (["endpoint", "ip"], ["ip"]))
    app = application([Route("/a", each), Route("/b", each), Route("/c", both), Route("/d", both)])
    assert statuses(app, "/a", "/b", "/a", "/b", "/c", "/d") == [200, 200, 429, 429, 200, 429]


def test_a_limit_on_a_mounted_application_applies_below_the_mount() -> None:
    """A decorated ASGI application is limited wherever it is mounted."""
    app = application([Mount("/files", app=limit("1/minute")(sending(START, BODY)))])
    assert statuses(app, "/files/a", "/files/b") == [200, 429]
