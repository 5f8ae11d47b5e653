"""The middleware finds the route of a request from any place in the stack."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette_apps import application, asynchronous, hello, statuses
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.starlette import RateLimitMiddleware, limit
from ratelimit_mw.testing import ManualClock


def test_options_count_where_starlette_does_not_answer_them() -> None:
    """Starlette responds with 405 for a route without OPTIONS. A view that handles OPTIONS is limited, as is a 404."""
    routes = [Route("/get", hello, methods=["GET"]), Route("/all", hello, methods=["GET", "OPTIONS"])]
    for path, expected in {"/get": [405] * 3, "/all": [200, 200, 429], "/nowhere": [404, 404, 429]}.items():
        app = application([Mount("/in", routes=routes), *routes], Rule(name="all", limits="2/minute"))
        assert statuses(app, *[path] * 3, method="OPTIONS") == expected
        assert statuses(app, path) == [429 if 429 in expected else 200]
        mounted = application([Mount("/in", routes=routes)], Rule(name="all", limits="2/minute"))
        assert statuses(mounted, *[f"/in{path}"] * 3, method="OPTIONS") == expected
    named = Rule(name="all", limits="2/minute", match={"methods": "OPTIONS"})
    assert statuses(application(routes, named), *["/get"] * 3, method="OPTIONS") == [405, 405, 429]


def test_path_parameters_without_routes_are_an_error() -> None:
    """An application without a framework has no path parameters, so a rule by one would never apply."""

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("never called")

    app = RateLimitMiddleware(plain, limiter=Limiter([Rule(limits="1/minute", key=["path:id"])]))
    for _ in range(2):
        with pytest.raises(ConfigError, match="uses the feature 'path:id'"):
            ask(app)


def test_routes_added_later_are_limited() -> None:
    """Routes, and routes of mounted routers, that are added after the first request have their limits."""
    inner = Router()
    app = application([Route("/", hello), Mount("/inner", app=inner)])
    assert statuses(app, "/", "/late", "/inner/late") == [200, 404, 404]
    app.routes.append(Route("/late", asynchronous))
    assert statuses(app, *["/late"] * 3) == [200, 200, 429]
    inner.routes.append(Route("/late", limit("1/minute")(hello)))
    assert statuses(app, *["/inner/late"] * 2) == [200, 429]


class Rewrites:
    """A middleware that changes the path of requests."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/old":
            scope["path"] = "/new"
        await self.app(scope, receive, send)


# -- position of the middleware ----------------------------------------------------------------------------


def test_a_mounted_middleware_uses_whole_templates() -> None:
    """The middleware of an inner application counts by the whole template, for any parameters of the mounts."""

    @limit("2/minute", key=["endpoint"])
    async def item(request: Any) -> Response:
        return PlainTextResponse("item")

    inner = application([Route("/items/{id}", item)])
    outer = Starlette(routes=[Mount("/t/{tenant}", app=inner), Mount("/u", app=inner), Route("/", hello)])
    assert statuses(outer, "/t/a/items/1", "/t/b/items/2", "/t/c/items/3") == [200, 200, 429]
    assert statuses(outer, "/u/items/1", "/") == [200, 200]


def test_a_hidden_inner_application_uses_its_own_routes() -> None:
    """When a mount hides the application, the inner middleware uses the application's own routes."""
    inner = application([Route("/limited", asynchronous)])

    async def hiding(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    outer = Starlette(routes=[Mount("/hidden", app=hiding)])
    assert statuses(outer, *["/hidden/limited"] * 3) == [200, 200, 429]


def test_the_middleware_may_wrap_the_application() -> None:
    """The middleware finds the routes when it wraps the application by hand, even inside other middleware."""
    app: Any = Rewrites(Starlette(routes=[Route("/", asynchronous)]))
    app = RateLimitMiddleware(app, limiter=Limiter(clock=ManualClock(1_000_000.0)))
    assert statuses(app, "/", "/", "/") == [200, 200, 429]


def test_a_route_may_have_its_own_middleware() -> None:
    """The middleware of one route decides the limits of that route."""
    routes: list[BaseRoute] = [
        Mount("/m", app=RateLimitMiddleware(Router([Route("/", asynchronous)]), limiter=Limiter()))
    ]
    assert statuses(Starlette(routes=routes), "/m/", "/m/", "/m/") == [200, 200, 429]


def test_a_405_does_not_consume_the_limits_of_the_view() -> None:
    """Only the rules of the file apply to a method that the route does not accept."""
    app = application([Route("/", asynchronous)], Rule(name="all", limits="3/minute"))
    assert [ask(app, method=method).status_code for method in ("POST", "POST", "GET", "GET")] == [405, 405, 200, 429]


def test_an_application_that_wraps_itself_has_no_routes() -> None:
    """The search for routes ends, and the rules of the file apply."""

    class Endless(Rewrites):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("endless")(scope, receive, send)

    inner = Endless(None)
    inner.app = inner
    app = RateLimitMiddleware(inner, limiter=Limiter([Rule(limits="1/minute")], clock=ManualClock(1.0)))
    assert statuses(app, "/", "/") == [200, 429]


@each("same", [True, False])
def test_the_inner_middleware_decides_views_hidden_from_the_outer_one(same: bool) -> None:
    """When a wrapper hides the routes, the outer middleware decides rules of the file and the inner one the views."""
    limiters = [Limiter([Rule(name="all", limits="9/minute")], clock=ManualClock(1_000_000.0))] * 2
    settings = load_settings({"rules": [{"name": "all", "limits": "9/minute"}]})
    if not same:
        limiters = [Limiter.from_settings(settings, clock=ManualClock(1_000_000.0)) for _ in range(2)]
    inner = application([Route("/", asynchronous), Route("/free", hello)], limiter=limiters[0])

    async def hiding(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    app = RateLimitMiddleware(hiding, limiter=limiters[1])
    assert statuses(app, "/", "/", "/", "/free") == [200, 200, 429, 200]
    assert ask(app, "/free").headers["x-ratelimit-remaining"] == "4"
