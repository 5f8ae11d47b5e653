"""``match.view`` names a view as the framework does when it builds URLs. The rule holds for all its paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import pytest
from calls import ask
from django.urls import include, path
from django_calls import hello as django_view
from django_calls import project
from django_calls import still as limiter_of
from fastapi import APIRouter, FastAPI
from flask_calls import ask as ask_flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

Ask = Callable[[str], int]


def limiter(*views: str) -> Limiter:
    rule = {"name": "view", "limits": "1/minute", "key": [], "match": {"view": list(views)}}
    return limiter_of({"rules": [rule]})


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("page")


def starlette(*views: str) -> Ask:
    routes = [
        Route("/", page, name="home"),
        Mount("/auth", routes=[Route("/login/{id}", page, name="login"), Route("/other", page)], name="auth"),
        Mount("/unnamed", routes=[Route("/x", page, name="inside")]),
        Mount("/static", app=lambda scope, receive, send: page(None), name="static"),
        Host("{shop}.example", app=Starlette(routes=[Route("/y", page, name="inside")]), name="shop"),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(RateLimitMiddleware, limiter=limiter(*views))
    return lambda path: ask(app, path).status_code


def fastapi(*views: str) -> Ask:
    auth, inner, app = APIRouter(prefix="/auth"), FastAPI(), FastAPI()
    auth.get("/login/{id}", name="login")(lambda id: "login")  # noqa: A006
    inner.get("/x")(inside)
    app.include_router(auth)
    app.mount("/inner", inner, name="inner")
    app.add_middleware(RateLimitMiddleware, limiter=limiter(*views))
    return lambda path: ask(app, path).status_code


def inside() -> str:
    return "inside"


def in_flask(*views: str) -> Ask:
    app, auth = flask.Flask("app"), flask.Blueprint("auth", "auth", url_prefix="/auth")
    auth.add_url_rule("/login/<id>", "login", lambda id: "login")  # noqa: A006
    auth.add_url_rule("/signin", "login", defaults={"id": "1"})
    app.add_url_rule("/", "home", lambda: "home")
    app.register_blueprint(auth)
    RateLimiter(app, limiter=limiter(*views))
    return lambda path: ask_flask(app, path).status_code


@each(
    ("serve", "view", "limited", "others"),
    [
        (starlette, "home", ["/"], ["/auth/other"]),
        (starlette, "auth:login", ["/auth/login/1", "/auth/login/2"], ["/", "/auth/other"]),
        (starlette, "inside", ["/unnamed/x"], ["/"]),
        (starlette, "", [], ["/", "/nowhere", "/auth/login/1"]),
        (fastapi, "login", ["/auth/login/1", "/auth/login/2"], ["/inner/x"]),
        (fastapi, "inner:inside", ["/inner/x"], ["/auth/login/1"]),
        (in_flask, "auth.login", ["/auth/login/2", "/auth/signin"], ["/"]),
        (in_flask, "", [], ["/", "/nowhere", "/auth/login/1"]),
    ],
)
def test_a_rule_names_a_view(serve: Callable[..., Ask], view: str, limited: list[str], others: list[str]) -> None:
    """One request to all paths of the view is allowed, and no other view is limited. "" names no view."""
    send = serve(view)
    assert [send(path) for path in limited * 2] == [200, 429, 429, 429][: len(limited) * 2]
    assert 429 not in [send(path) for path in others * 2]


@each("is_async", [False, True])
def test_a_rule_names_a_view_of_django(is_async: bool) -> None:
    """The name has the namespaces of its ``include``."""
    account = [path("login/<int:id>", django_view, name="login"), path("out", django_view)]
    patterns = [path("", django_view, name="home"), path("auth/", include((account, "auth"), "members"))]
    with project(limiter("members:login"), *patterns, is_async=is_async) as site:
        answers = [site.ask(where).status_code for where in ("/auth/login/1", "/auth/login/2", "/", "/auth/out")]
    assert answers == [200, 429, 200, 200]


def test_a_list_of_views_and_a_path_both_hold() -> None:
    """A rule applies to each of its views, and only where its path matches too."""
    routes = [Route("/a", page, name="a"), Route("/b", page, name="b"), Route("/a/c", page, name="a")]
    app = Starlette(routes=routes)
    match = {"view": ["a", "b"], "path": ["/a/**"]}
    app.add_middleware(RateLimitMiddleware, limiter=Limiter([Rule(limits="1/minute", key=[], match=match)]))
    assert [ask(app, path).status_code for path in ("/a", "/b", "/b", "/a/c")] == [200, 200, 200, 429]


def plain_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    raise AssertionError("never called")


async def plain_asgi(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("never called")


class Plain:
    __call__ = staticmethod(plain_asgi)


def test_a_plain_application_has_no_views() -> None:
    """The middleware reports a rule that names a view when it is built, or at the first request at the latest."""
    expected = r"rule 'view': match\.view: the views of this application have no names\. Write match\.path"
    with pytest.raises(ConfigError, match=expected):
        WSGIMiddleware(plain_wsgi, limiter=limiter("login"))
    with pytest.raises(ConfigError, match=expected):
        RateLimitMiddleware(plain_asgi, limiter=limiter("login"))
    late = RateLimitMiddleware(Plain(), limiter=limiter("login"))
    with pytest.raises(ConfigError, match=expected):
        ask(late)
    WSGIMiddleware(plain_wsgi, limiter=limiter(""))
    RateLimitMiddleware(plain_asgi, limiter=limiter(""))


@each("view", [None, 7, []])
def test_the_name_of_a_view_is_text(view: object) -> None:
    """The error shows the expected form."""
    with pytest.raises(ConfigError, match=r"match\.view"):
        Rule(limits="1/minute", match={"view": view})


def test_a_decorated_view_needs_no_name() -> None:
    """The decorator is on the view already."""
    with pytest.raises(ConfigError, match=r"match\.view: a decorated view has the view of its route\. Remove"):
        limit("1/minute", match={"view": "home"})(page)
