"""``@limit`` and ``@exempt`` on functions, and on class-based views and their methods."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import django.views
import flask
import flask.views
import pytest
from calls import ask
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from sites import NOW
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tables import each

from ratelimit_mw import Limiter, MissingMiddlewareError, Rule
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.decorators import exempt, limit
from ratelimit_mw.starlette import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock, limits_off

Ask = Callable[..., list[int]]
"""Sends a request with each of these methods, and returns the statuses."""


@contextmanager
def by_starlette(views: dict[str, Any], limiter: Limiter | None) -> Iterator[Ask]:
    app = Starlette(routes=[Route(where, view) for where, view in views.items()])
    if limiter:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)

    def status(method: str, where: str) -> int:
        try:
            return ask(app, where, method).status_code
        except MissingMiddlewareError:
            return 500

    yield lambda *methods, where="/": [status(method, where) for method in methods]


@contextmanager
def by_flask(views: dict[str, Any], limiter: Limiter | None) -> Iterator[Ask]:
    app = flask.Flask("app")
    for where, view in views.items():
        form = view.as_view(where) if isinstance(view, type) else view
        app.add_url_rule(where, where, form)
    if limiter:
        RateLimiter(app, limiter=limiter)
    client = app.test_client()
    yield lambda *methods, where="/": [client.open(where, method=method).status_code for method in methods]


@contextmanager
def by_django(views: dict[str, Any], limiter: Limiter | None, is_async: bool) -> Iterator[Ask]:
    forms = {where: view.as_view() if isinstance(view, type) else view for where, view in views.items()}
    patterns = [path(where[1:], form) for where, form in forms.items()]
    others = {} if limiter else {"middleware": ["django.middleware.common.CommonMiddleware"]}
    with project(limiter, *patterns, is_async=is_async, **others) as served:
        yield lambda *methods, where="/": [served.ask(where, method).status_code for method in methods]


class Framework(NamedTuple):
    """What a framework has for views: the base class, a function that makes a function or method, and its server."""

    base: type
    function: Callable[[], Any]
    serve: Callable[..., Any]

    def class_of(self, base: type | None = None, **members: Any) -> type:
        """Return a view for GET and POST with these members."""
        methods = {} if base else {"get": self.function(), "post": self.function()}
        return type("Items", (base or self.base,), {**methods, **members})

    def open(self, views: Any, *rules: Rule) -> Any:
        """Serve views by path, or the view of ``/``."""
        limiter = Limiter(rules, clock=ManualClock(NOW))
        return self.serve(views if isinstance(views, dict) else {"/": views}, limiter)


def of_starlette() -> Any:
    async def view(*_: Any) -> PlainTextResponse:
        return PlainTextResponse("done")

    return view


def of_flask() -> Any:
    return lambda *_, **__: "done"


def of_django() -> Any:
    return lambda *_, **__: HttpResponse("done")


def of_async_django() -> Any:
    async def view(*_: Any) -> HttpResponse:
        return HttpResponse("done")

    return view


FRAMEWORKS = {
    "starlette": Framework(HTTPEndpoint, of_starlette, by_starlette),
    "flask": Framework(flask.views.MethodView, of_flask, by_flask),
    "django": Framework(django.views.View, of_django, functools.partial(by_django, is_async=False)),
    "async django": Framework(django.views.View, of_async_django, functools.partial(by_django, is_async=True)),
}
API = Rule(name="api", limits="1/minute")


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


def wrapped(view: Any) -> Any:
    """Return a function around a view, as decorators make it."""

    async def aouter(*arguments: Any) -> Any:
        return await view(*arguments)

    return functools.wraps(view)(aouter if iscoroutinefunction(view) else lambda *arguments: view(*arguments))


# -- functions -------------------------------------------------------------------------------------------------


def test_a_call_limits_only_one_route(framework: Framework) -> None:
    """A function that a call of limit() limits on one route stays unlimited on another."""
    view = framework.function()
    with framework.open({"/free": view, "/": limit("1/minute")(view)}) as statuses:
        assert [statuses("GET", "GET"), statuses("GET", "GET", where="/free")] == [[200, 429], [200, 200]]


@each("mark", [limit, exempt])
def test_a_mark_holds_above_the_decorator_of_the_route(framework: Framework, mark: Any) -> None:
    """The view was registered before it was marked."""
    if framework.base is django.views.View:  # it has no such decorators
        return
    views = {"/": framework.function(), "/wrapped": framework.function()}
    with framework.open(views, *[API] * (mark is exempt)) as statuses:
        for where, view in views.items():
            outer = functools.wraps(view)(lambda: None) if where == "/wrapped" else view
            _ = exempt(outer) if mark is exempt else limit("1/minute")(limit("5/hour")(outer))
        for where in views:
            assert statuses("GET", "GET", where=where) == [200, 200 if mark is exempt else 429]


@each("mark", [limit, exempt])
def test_a_mark_holds_above_an_extension_that_registers_its_own_function(framework: Framework, mark: Any) -> None:
    """The route has a function around the view, as in flask-openapi3, whose decorator returns the view."""
    if framework.base is django.views.View:  # it has no such decorators
        return
    view = framework.function()
    with framework.open(wrapped(view), *[API] * (mark is exempt)) as statuses:
        _ = exempt(view) if mark is exempt else limit("1/minute")(view)
        assert statuses("GET", "GET") == [200, 200 if mark is exempt else 429]


def test_a_late_mark_holds_where_another_route_wraps_it(framework: Framework) -> None:
    """The marked function has no route of its own, only one behind a decorator."""
    if framework.base is django.views.View:
        return
    view = framework.function()
    with framework.open({"/": view, "/wrapped": wrapped(limit("1/minute")(view))}) as statuses:
        assert statuses("GET", "GET") == [200, 429]


def test_a_late_exemption_is_for_its_own_route(framework: Framework) -> None:
    """A view is not exempt because another route has an exempt form of it, with or without a decorator around."""
    for outer in (wrapped, lambda view: view):
        view = framework.function()
        with framework.open({"/": outer(view), "/wrapped": wrapped(exempt(view))}, API) as statuses:
            assert statuses("GET", "GET", where="/wrapped") == [200, 200]
            assert statuses("GET", "GET") == [200, 429]


def test_a_mark_on_a_method_is_for_its_own_route(framework: Framework) -> None:
    """A method of an object is not marked because another method is made from it."""
    for mark in (limit("1/hour"), exempt):
        view = framework.function()
        shown = type("Shown", (), {"one": view, "other": mark(view)})()
        with framework.open({"/": shown.one, "/other": shown.other}, Rule(name="api", limits="2/minute")) as statuses:
            assert statuses("GET", "GET", "GET") == [200, 200, 429]


def test_a_decorator_in_between_hides_no_limit(framework: Framework) -> None:
    """A decorator that keeps the function's attributes, as functools.wraps does, may stand above @limit."""
    with framework.open(wrapped(limit("1/minute")(framework.function()))) as statuses:
        assert statuses("GET", "GET") == [200, 429]


def test_a_decision_does_not_carry_over_to_the_next_request(framework: Framework) -> None:
    """A view called directly, after a decided request in the same thread, raises the error about the middleware."""
    view = limit("5/minute")(framework.function())
    with framework.open(view) as statuses:
        assert statuses("GET") == [200]
        with pytest.raises(MissingMiddlewareError):
            view().send(None)


# -- classes ---------------------------------------------------------------------------------------------------


def marked_classes(framework: Framework) -> list[type]:
    """Return classes whose GET has a limit: on the class, its base and its method."""
    every = limit("1/minute")(framework.class_of())
    return [every, framework.class_of(every), framework.class_of(get=limit("1/minute")(framework.function()))]


def test_a_limit_on_a_class_holds_for_all_its_methods(framework: Framework) -> None:
    """So it does for a class below it."""
    for view in marked_classes(framework)[:2]:
        with framework.open(view) as statuses:
            assert statuses("GET", "POST") == [200, 429]


def test_a_limit_on_a_class_holds_for_the_methods_of_its_objects(framework: Framework) -> None:
    """Routes may lead to methods of one object, alone, behind a decorator or as ``partial``. They share one count."""
    members = {"one": framework.function(), "other": framework.function(), "free": exempt(framework.function())}
    shown = limit("2/minute")(type("Shown", (), members))()
    views = {"/": shown.one, "/other": wrapped(shown.other), "/part": functools.partial(shown.one), "/free": shown.free}
    with framework.open(views) as statuses:
        assert [*statuses("GET"), *statuses("GET", where="/other"), *statuses("GET", where="/part")] == [200, 200, 429]
        assert statuses("GET", "GET", where="/free") == [200, 200]


def test_a_limit_on_one_method_of_a_class_holds_only_for_it(framework: Framework) -> None:
    """Limits on get and post count separately, HEAD counts as GET, and an overriding subclass keeps the limit."""
    get, post = limit("2/minute")(framework.function()), limit("1/minute")(framework.function())
    view = framework.class_of(framework.class_of(get=get, post=post), post=framework.function())
    with framework.open(view) as statuses:
        assert (statuses("POST", "POST"), statuses("HEAD", "GET", "GET")) == ([200, 429], [200, 200, 429])


def test_an_exempt_method_of_a_class_is_exempt_for_head_too(framework: Framework) -> None:
    """HEAD counts as GET: the site's limit holds for neither of them, and for POST it does."""
    with framework.open(framework.class_of(get=exempt(framework.function())), API) as statuses:
        assert statuses("HEAD", "GET", "HEAD", "POST", "POST") == [200] * 4 + [429]


def test_a_limited_method_of_an_exempt_class_is_limited(framework: Framework) -> None:
    """The rules of the settings do not apply to it, and neither to the other methods."""
    view = exempt(framework.class_of(get=limit("1/minute")(framework.function())))
    with framework.open(view, API) as statuses:
        assert (statuses("GET", "GET"), statuses("POST", "POST")) == ([200, 429], [200, 200])


def test_a_limit_without_the_middleware_is_an_error(framework: Framework) -> None:
    """A limited function, class or method does not run without it, unless limits are off."""
    for view in (limit("1/minute")(framework.function()), *marked_classes(framework)):
        with framework.serve({"/": view}, None) as statuses:
            assert statuses("GET") == [500]
            with limits_off():
                assert statuses("GET") == [200]
