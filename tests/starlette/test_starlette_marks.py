"""``@limit`` and ``@exempt`` on functions, classes and methods, above and below other decorators."""

from __future__ import annotations

import functools
from typing import Any

from calls import ask, http_scope, send_bare
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette_apps import ByMethod, Whole, application, asynchronous, hello, statuses, synchronous
from tables import each

from ratelimit_mw import Rule
from ratelimit_mw.starlette import exempt, limit


@each("view", [asynchronous, synchronous, Whole, functools.partial(synchronous)])
def test_a_decorated_view_is_limited(view: Any) -> None:
    """Sync and async functions, classes and partials are limited at their own route only."""
    app = application([Route("/limited", view), Route("/free", hello)])
    assert statuses(app, "/limited", "/limited", "/limited", "/free") == [200, 200, 429, 200]
    assert "x-ratelimit-limit" not in ask(app, "/free").headers


def test_methods_of_a_class_have_their_own_limits() -> None:
    """A limit on a method applies to requests with that method. HEAD counts with GET."""
    app = application([Route("/", ByMethod)])
    codes = [ask(app, method=method).status_code for method in ("GET", "POST", "POST", "HEAD", "GET")]
    assert codes == [200, 200, 200, 429, 429]


@each("calls_super", [False, True])
def test_an_overriding_method_keeps_the_limit(calls_super: bool) -> None:
    """A subclass has the limits of the methods that it overrides and its own limits."""

    class Overriding(ByMethod):
        @limit("5/minute", name="own")
        async def get(self, request: Any) -> Response:
            return await super().get(request) if calls_super else PlainTextResponse("overridden")

    app = application([Route("/", Overriding)])
    responses = [ask(app) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert responses[0].headers["ratelimit-policy"].endswith('"own";q=5;w=60')


def test_bound_methods_are_limited() -> None:
    """The decorator of a bound method is on its function."""

    class Views:
        @limit("1/minute")
        async def view(self, request: Any) -> Response:
            return PlainTextResponse("view")

    assert statuses(application([Route("/", Views().view)]), "/", "/") == [200, 429]


def test_a_view_on_two_routes_has_one_count_without_endpoint_in_its_key() -> None:
    """A limit belongs to its view. With ``endpoint`` in the key, each route has its own count."""

    @limit("1/minute", key=["endpoint", "ip"])
    async def each(request: Any) -> Response:
        return PlainTextResponse("each")

    @limit("1/minute", key=["ip"])
    async def both(request: Any) -> Response:
        return PlainTextResponse("both")

    app = application([Route("/a", each), Route("/b", each), Route("/c", both), Route("/d", both)])
    assert statuses(app, "/a", "/b", "/a", "/b", "/c", "/d") == [200, 200, 429, 429, 200, 429]


def test_a_limit_above_the_route_decorator_applies() -> None:
    """``@limit`` above the decorator of the route limits the view, too."""
    routes: list[BaseRoute] = []

    def route(path: str) -> Any:
        return lambda view: routes.append(Route(path, view)) or view

    def logged(view: Any) -> Any:
        @functools.wraps(view)
        async def called(request: Any) -> Response:
            return await view(request)  # type: ignore[no-any-return]

        return called

    @limit("1/minute")
    @limit("5/hour")
    @route("/above")
    async def above(request: Any) -> Response:
        return PlainTextResponse("above")

    @limit("1/minute")
    @logged
    @route("/far-above")
    async def far_above(request: Any) -> Response:
        return PlainTextResponse("far above")

    @exempt("everyone")
    @route("/exempt")
    async def left_alone(request: Any) -> Response:
        return PlainTextResponse("exempt")

    app = application(routes, Rule(name="everyone", limits="100/minute"))
    assert statuses(app, "/above", "/above", "/far-above", "/far-above") == [200, 429, 200, 429]
    assert ask(app, "/above").headers["ratelimit-policy"].count(";w=") == 3
    assert "ratelimit" not in ask(app, "/exempt").headers


def test_a_function_can_have_a_free_and_a_limited_route() -> None:
    """A function that a call of limit() limits for one route stays unlimited on the other."""

    async def view(request: Any) -> Response:
        return PlainTextResponse("view")

    app = application([Route("/free", view), Route("/limited", limit("1/minute")(view))])
    assert statuses(app, "/limited", "/limited", "/free", "/free") == [200, 429, 200, 200]


def test_a_limit_on_a_mounted_application_applies_below_the_mount() -> None:
    """A decorated ASGI application is limited wherever it is mounted."""

    @limit("1/minute")
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("mounted")(scope, receive, send)

    app = application([Mount("/files", app=mounted)])
    assert statuses(app, "/files/a", "/files/b") == [200, 429]


# -- exemptions --------------------------------------------------------------------------------------------


def test_a_limited_method_of_an_exempt_class_is_limited() -> None:
    """The rules of the settings do not apply to it, and neither to the other methods."""
    app = application([Route("/", exempt(type("Free", (ByMethod,), {})))], Rule(name="everyone", limits="2/minute"))
    assert [statuses(app, *["/"] * 3, method=method) for method in ("GET", "POST")] == [[200, 429, 429], [200] * 3]


def test_an_exempt_view_has_a_verdict() -> None:
    """Code can read the verdict in every view, even when the server shares one state between requests."""
    verdicts: list[Any] = []

    async def reads(request: Any) -> Response:
        verdicts.append(request.state.ratelimit)
        return PlainTextResponse("read")

    async def speaks(websocket: Any) -> None:
        verdicts.append(websocket.state.ratelimit)
        await websocket.close()

    routes = [Route("/", reads), Route("/free", exempt(reads)), WebSocketRoute("/talk", speaks)]
    app = application(routes, Rule(match={"path": "/"}, limits="9/minute"))
    state: dict[str, Any] = {}
    for scope in (http_scope(), http_scope(path="/free"), {**http_scope(path="/talk"), "type": "websocket"}):
        send_bare(app, {**scope, "state": state}, {"type": "websocket.connect"})
    assert [(verdict.allowed, len(verdict.decisions)) for verdict in verdicts] == [(True, 1), (True, 0), (True, 0)]
