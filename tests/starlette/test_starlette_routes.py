"""The middleware finds the route of a request from any place in the stack."""

import functools
from typing import Any

import pytest
from calls import BODY, OK, START, ask, sending
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from starlette_apps import application, asynchronous, hello, statuses, synchronous
from tables import each

from ratelimit_mw import Limiter, MissingMiddlewareError, Rule, load_settings
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


def test_routes_added_later_are_limited() -> None:
    """Routes, and routes of mounted routers, that are added after the first request have their limits."""
    inner = Router()
    app = application([Route("/", hello), Mount("/inner", app=inner)])
    assert statuses(app, "/", "/late", "/inner/late") == [200, 404, 404]
    app.routes.append(Route("/late", asynchronous))
    assert statuses(app, *["/late"] * 3) == [200, 200, 429]
    inner.routes.append(Route("/late", limit("1/minute")(hello)))
    assert statuses(app, *["/inner/late"] * 2) == [200, 429]


REPLACE = {
    "in place": lambda app, route: app.routes.__setitem__(0, route),
    "moved": lambda app, route: (app.routes.pop(0), app.routes.append(route)),
    "another list": lambda app, route: setattr(app.router, "routes", [route, *app.routes[1:]]),
}


@each("way", REPLACE)
def test_routes_replaced_later_are_limited(way: str) -> None:
    """A route that takes the place of another one after the first request has its limit, for a known path, too."""
    app = application([Route("/", hello), Route("/other", hello)])
    assert statuses(app, "/", "/") == [200, 200]
    REPLACE[way](app, Route("/", limit("1/minute")(hello)))
    assert statuses(app, "/", "/", "/other") == [200, 429, 200]


# -- position of the middleware ----------------------------------------------------------------------------


class Wraps:
    """A middleware that changes nothing, and shows the application inside or hides it."""

    def __init__(self, app: Any, attribute: str = "app") -> None:
        setattr(self, attribute, app)
        self.inner = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await (OK if self.inner is self else self.inner)(scope, receive, send)


def test_a_mounted_middleware_uses_whole_templates() -> None:
    """The middleware of an inner application counts by the whole template, for any parameters of the mounts."""

    @limit("2/minute", key=["endpoint"])
    async def item(request: Any) -> Response:
        return PlainTextResponse("item")

    inner = application([Route("/items/{id}", item)])
    outer = Starlette(routes=[Mount("/t/{tenant}", app=inner), Mount("/u", app=inner), Route("/", hello)])
    assert statuses(outer, "/t/a/items/1", "/t/b/items/2", "/t/c/items/3") == [200, 200, 429]
    assert statuses(outer, "/u/items/1", "/") == [200, 200]


def wrapped() -> Any:
    inner = Wraps(Starlette(routes=[Route("/", asynchronous)]))
    return RateLimitMiddleware(inner, limiter=Limiter(clock=ManualClock(1_000_000.0)))


def of_route() -> Any:
    inside = RateLimitMiddleware(Router([Route("/", asynchronous)]), limiter=Limiter(clock=ManualClock(1_000_000.0)))
    return Starlette(routes=[Mount("/m", app=inside)])


def hidden() -> Any:
    return Starlette(routes=[Mount("/m", app=Wraps(application([Route("/", asynchronous)]), "hidden"))])


@each(("build", "path"), [(wrapped, "/"), (of_route, "/m/"), (hidden, "/m/")])
def test_the_middleware_finds_the_routes_in_any_place(build: Any, path: str) -> None:
    """It may wrap the application by hand, be that of one route, or be in an application that a mount hides."""
    assert statuses(build(), *[path] * 3) == [200, 200, 429]


def test_a_405_does_not_consume_the_limits_of_the_view() -> None:
    """Only the rules of the file apply to a method that the route does not accept."""
    app = application([Route("/", asynchronous)], Rule(name="all", limits="3/minute"))
    assert [ask(app, method=method).status_code for method in ("POST", "POST", "GET", "GET")] == [405, 405, 200, 429]


def test_an_application_that_wraps_itself_has_no_routes() -> None:
    """The search for routes ends, and the rules of the file apply."""
    inner = Wraps(None)
    inner.app = inner.inner = inner  # type: ignore[attr-defined]
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
    app = RateLimitMiddleware(Wraps(inner, "hidden"), limiter=limiters[1])
    assert statuses(app, "/", "/", "/", "/free") == [200, 200, 429, 200]
    assert ask(app, "/free").headers["x-ratelimit-remaining"] == "4"


# -- decorators ------------------------------------------------------------------------------------------------


class Views:
    @limit("2/minute")
    async def view(self, request: Any) -> Response:
        return PlainTextResponse("view")


@each("view", [synchronous, Views().view])
def test_a_decorated_view_is_limited(view: Any) -> None:
    """A sync function, and a bound method, which has the decorator on its function."""
    assert statuses(application([Route("/", view)]), "/", "/", "/") == [200, 200, 429]


def test_a_partial_of_a_decorated_view_is_an_error() -> None:
    """Nothing marks the partial, so its limit would be missing."""
    with pytest.raises(MissingMiddlewareError, match=r"write functools\.wraps"):
        ask(application([Route("/", functools.partial(synchronous))]), "/")


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
    app = application([Mount("/files", app=limit("1/minute")(sending(START, BODY)))])
    assert statuses(app, "/files/a", "/files/b") == [200, 429]
