"""Two middlewares of one limiter, where only the inner one knows the routes of the application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flask
import pytest
from calls import OK, ask, ask_wsgi
from django_calls import MIDDLEWARE, project
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw import ConfigError, Limiter, Rule, asgi, wsgi
from ratelimit_mw import django as of_django
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.testing import ManualClock

# Django is set up on the import of django_calls.
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpResponse  # isort: skip
from django.urls import path  # isort: skip

Serve = Callable[..., Any]
ATTEMPTS = {"name": "attempts", "key": ["ip"], "limits": "5/minute"}


def rejects_strangers(app: Any) -> Any:
    """Return WSGI middleware that responds with 400 to requests without a user."""

    class Authenticates:
        def __init__(self) -> None:
            self.app = app

        def __call__(self, environ: Any, start_response: Any) -> Any:
            environ["REMOTE_USER"] = user = environ.get("HTTP_X_USER", "")
            if not user:
                start_response("400 Bad Request", [])
                return [b""]
            return app(environ, start_response)

    return Authenticates()


def flask_app() -> Any:
    app = flask.Flask("app")
    app.add_url_rule("/login", "login", of_flask.limit("9/minute", name="own")(lambda: "login"))
    app.add_url_rule("/items/<int:id>", "items", lambda **given: str(given))
    return app


@contextmanager
def in_flask(limiter: Limiter, extension_first: bool = True) -> Iterator[Serve]:
    app = flask_app()
    if extension_first:
        of_flask.RateLimiter(app, limiter=limiter)
    app.wsgi_app = wsgi.RateLimitMiddleware(rejects_strangers(app.wsgi_app), limiter=limiter, before_user=True)
    if not extension_first:
        of_flask.RateLimiter(app, limiter=limiter)
    yield lambda path, **headers: ask_wsgi(app, path, headers=headers)


@contextmanager
def in_flask_late(limiter: Limiter) -> Iterator[Serve]:
    with in_flask(limiter, extension_first=False) as serve:
        yield serve


URLS = (
    path("login", of_django.limit("9/minute", name="own")(lambda request: HttpResponse("login")), name="login"),
    path("items/<int:id>", lambda request, **given: HttpResponse(str(given)), name="items"),
)


@contextmanager
def in_django(limiter: Limiter) -> Iterator[Serve]:
    with project({"limiter": limiter}, *URLS):
        app = wsgi.RateLimitMiddleware(rejects_strangers(WSGIHandler()), limiter=limiter, before_user=True)
        yield lambda path, **headers: ask_wsgi(app, path, headers=headers)


@contextmanager
def in_async_django(limiter: Limiter) -> Iterator[Serve]:
    class Layer:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            known = any(name == b"x-user" for name, _ in scope["headers"])
            await (self.app if known else PlainTextResponse(status_code=400))(scope, receive, send)

    with project({"limiter": limiter}, *URLS):
        app = asgi.RateLimitMiddleware(Layer(ASGIHandler()), limiter=limiter, before_user=True)
        yield lambda path, **headers: ask(app, path, headers=headers)


@pytest.fixture(params=[in_flask, in_flask_late, in_django, in_async_django])
def around(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("rule", "paths", "expected"),
    [
        ({"name": "v", "limits": "1/minute", "match": {"view": "login"}}, "/login /items/1 /login", [200, 200, 429]),
        ({"name": "p", "limits": "1/minute", "key": ["path:id"]}, "/items/1 /items/2 /items/1", [200, 200, 429]),
        ({"name": "e", "limits": "1/minute", "key": ["endpoint"]}, "/items/1 /login /items/2", [200, 200, 429]),
        ({"overrides": "own", "limits": "1/minute"}, "/login /items/1 /login", [200, 200, 429]),
    ],
)
def test_the_inner_middleware_decides_the_rules_of_routes(
    around: Any, rule: Any, paths: str, expected: list[int]
) -> None:
    """The outer one cannot know views, endpoints, path parameters and decorators. It decides the rule by IP address."""
    with around(Limiter.from_settings({"rules": [ATTEMPTS, rule]})) as serve:
        assert [serve(path, **{"x-user": "ann"}).status_code for path in paths.split()] == expected
        assert [serve("/login").status_code for _ in range(3)] == [400, 400, 429]


def test_headers_and_lists_of_both(around: Any) -> None:
    """A list by a path parameter applies inside. The headers of a response show all rules."""
    rule = {"name": "v", "limits": "2/minute", "match": {"view": "login"}}
    settings: Any = {"rules": [ATTEMPTS, rule], "lists": {"deny": {"path:id": ["7"]}}}
    with around(Limiter.from_settings(settings)) as serve:
        response = serve("/login", **{"x-user": "ann"})
        assert response.headers["ratelimit-policy"] == '"attempts";q=5;w=60, "v";q=2;w=60, "own";q=9;w=60'
        assert [serve(f"/items/{number}", **{"x-user": "ann"}).status_code for number in (7, 8)] == [403, 200]


def test_a_function_of_flask_is_not_needed_outside() -> None:
    """The rule that needs it is left to the extension. A feature that neither has is still an error."""
    settings: Any = {"rules": [ATTEMPTS, {"name": "t", "key": ["tenant"], "limits": "1/minute"}]}
    app, limiter = flask_app(), Limiter.from_settings(settings)
    of_flask.RateLimiter(app, limiter=limiter, features={"tenant": lambda request: request.endpoint})
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, limiter=limiter, before_user=True)
    assert [ask_wsgi(app, path).status_code for path in ("/login", "/items/1", "/login")] == [200, 200, 429]
    with pytest.raises(ConfigError, match="the feature 'tenant', but nothing provides it"):
        of_flask.RateLimiter(flask_app(), settings)


def test_rules_of_routes_without_an_inner_middleware_are_errors() -> None:
    """Only a middleware with ``before_user`` leaves them to another one."""
    limiter = Limiter.from_settings({"rules": [{"limits": "1/minute", "match": {"view": "login"}}]})
    with pytest.raises(ConfigError, match="have no names"):
        wsgi.RateLimitMiddleware(lambda environ, start_response: [], limiter=limiter)
    assert wsgi.RateLimitMiddleware(lambda environ, start_response: [], limiter=limiter, before_user=True)


def test_an_entry_of_django_is_the_outer_one_behind_a_middleware_outside() -> None:
    """Three stages: the first entry of Django still leaves the rules by user to the second one."""
    rules: Any = [ATTEMPTS, {"name": "users", "key": ["user|ip"], "limits": "1/minute"}]
    limiter = Limiter.from_settings({"rules": rules})
    layers = [*MIDDLEWARE, f"{__name__}.signs_in", *MIDDLEWARE]
    with project({"limiter": limiter}, *URLS, middleware=layers):
        app = wsgi.RateLimitMiddleware(WSGIHandler(), limiter=limiter, before_user=True)
        answers = [ask_wsgi(app, "/login", headers={"x-user": user}).status_code for user in ("ann", "bob", "ann")]
    assert answers == [200, 200, 429]


def signs_in(get_response: Any) -> Any:
    class User:
        is_authenticated = True

        def __init__(self, pk: str) -> None:
            self.pk = pk

    def sign_in(request: Any) -> Any:
        request.user = User(request.headers["x-user"])
        return get_response(request)

    return sign_in


# -- decorators without rules ------------------------------------------------------------------------------


def test_decorators_count_once_without_rules() -> None:
    """A mounted application has the same limiter as the one around it, and no rules."""
    limiter = Limiter()
    view = of_starlette.limit("4/minute", name="v")(lambda request: PlainTextResponse("a"))
    sub = Starlette(routes=[Route("/a", view)])
    sub.add_middleware(asgi.RateLimitMiddleware, limiter=limiter)
    app = Starlette(routes=[Mount("/s", sub)])
    app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter)
    responses = [ask(app, "/s/a") for _ in range(6)]
    assert [response.status_code for response in responses] == [200, 200, 200, 200, 429, 429]
    assert responses[0].headers["ratelimit-policy"] == '"v";q=4;w=60'


def test_limiters_with_equal_settings_are_not_the_same() -> None:
    """Each counts for itself."""
    clock = ManualClock(1_000_000.0)
    limiters = [Limiter([Rule(name=name, limits="9/minute", key=["user|ip"])], clock=clock) for name in "ab"]
    app = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(OK, limiter=limiters[1]), limiter=limiters[0])
    assert ask(app).status_code == 200
    assert [limiter.peek({"ip": "192.0.2.7"}).decisions[0].remaining for limiter in limiters] == [7, 7]


# -- headers -----------------------------------------------------------------------------------------------


def test_the_headers_of_an_inner_rejection_are_kept() -> None:
    """An outer middleware of another limiter has allowed the request. Its numbers would contradict the 429."""

    def settings(name: str, amount: int, **options: Any) -> Any:
        return {"rules": [{"name": name, "limits": f"{amount}/minute"}], **options}

    outer, inner = settings("outer", 9), settings("inner", 1, headers=["ratelimit"])
    app = flask_app()
    of_flask.RateLimiter(app, inner)
    around_flask = wsgi.RateLimitMiddleware(app, outer)
    by_view = flask.Flask("by_view")
    by_view.add_url_rule("/login", view_func=lambda: app)
    of_flask.RateLimiter(by_view, outer)
    by_view.view_functions["<lambda>"] = lambda: flask.Response.from_app(app, flask.request.environ)
    within = asgi.RateLimitMiddleware(OK, inner)
    around_asgi = asgi.RateLimitMiddleware(within, outer)
    for serve in (
        lambda: ask_wsgi(around_flask, "/login"),
        lambda: ask_wsgi(by_view, "/login"),
        lambda: ask(around_asgi, "/login"),
    ):
        app.extensions["ratelimit_mw"].limiter.reset("inner", {"ip": "192.0.2.7"})
        allowed, rejected = serve(), serve()
        assert (allowed.status_code, rejected.status_code) == (200, 429)
        assert '"outer";r=' in allowed.headers["ratelimit"]
        assert rejected.headers["ratelimit"].startswith('"inner";r=0')
        assert "x-ratelimit-limit" not in rejected.headers


def test_the_headers_of_an_inner_rejection_are_kept_in_django() -> None:
    """The view sends the rejection of another limiter."""
    rejected = {"RateLimit": '"inner";r=0;t=7', "Retry-After": "7"}
    view = path("", lambda request: HttpResponse(status=429, headers=rejected))
    with project({"rules": [ATTEMPTS]}, view) as served:
        assert served.ask()["ratelimit"] == '"inner";r=0;t=7'
    with project({"rules": [ATTEMPTS]}, path("", lambda request: HttpResponse(status=429))) as served:
        assert served.ask()["ratelimit"].startswith('"attempts";r=4')
