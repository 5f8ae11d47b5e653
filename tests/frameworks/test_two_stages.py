"""Two middlewares with one limiter: the outer one counts by IP address, the inner one by user."""

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flask
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from calls import ask, ask_wsgi
from django.http import HttpResponse
from django_calls import MIDDLEWARE
from sites import BY_ASGI, NOW, SITES, Build, Call, Site, limited, only
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tables import each, expect_error

from ratelimit_mw import Limiter, Rule, wsgi
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.testing import ManualClock

SETTINGS: Any = {
    "rules": [
        {"name": "attempts", "limits": "5/hour", "match": {"methods": "POST"}},
        {"name": "api", "limits": "3/hour", "key": ["user|ip"]},
        {"name": "plans", "limits": "30/hour", "per": {"user": {"bob": "20/hour"}}},
    ],
}
TRIED: list[str] = []
Ask = Callable[..., Any]


def user_of(header: str | None) -> str | None:
    """Return the user of an ``Authorization`` header, "" for a wrong password, None without a header."""
    if not header:
        return None
    name, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    TRIED.append(password)
    return name if password == "right" else ""


def login(name: str, password: str = "right") -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        user = user_of(conn.headers.get("authorization"))
        if user == "":
            raise AuthenticationError("wrong password")
        return user and (AuthCredentials(), SimpleUser(user))


class Authenticates:
    """A WSGI middleware that sets ``REMOTE_USER``."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        user = user_of(environ.get("HTTP_AUTHORIZATION"))
        if user == "":
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b""]
        return self.app({**environ, **({"REMOTE_USER": user} if user else {})}, start_response)


async def shown(call: Call) -> str:
    return " ".join(call.verdict.rules)


def authenticates(get_response: Any) -> Any:
    """Django middleware that sets ``request.user``, and rejects wrong passwords."""

    class User:
        is_authenticated = True

        def __init__(self, pk: str) -> None:
            self.pk = pk

    def sign_in(request: Any) -> HttpResponse | None:
        user = user_of(request.headers.get("authorization"))
        if user:
            request.user = User(user)
        return HttpResponse(status=400) if user == "" else None

    if iscoroutinefunction(get_response):

        async def acall(request: Any) -> Any:
            return sign_in(request) or await get_response(request)

        return markcoroutinefunction(acall)
    return lambda request: sign_in(request) or get_response(request)


authenticates.sync_capable = authenticates.async_capable = True  # type: ignore[attr-defined]


BETWEEN: dict[str, Any] = {
    **dict.fromkeys(("asgi", "starlette", "fastapi"), partial(AuthenticationMiddleware, backend=Backend())),
    **dict.fromkeys(("wsgi", "flask"), Authenticates),
}


def two_stages(kind: str, settings: Any, view: Any) -> Site:
    """Open a site with a middleware outside its authentication, and one inside."""
    limiter = Limiter.from_settings(settings, clock=ManualClock(NOW))
    options: dict[str, Any] = {"middleware": [*MIDDLEWARE, f"{__name__}.authenticates", *MIDDLEWARE]}
    if kind in BETWEEN:
        options = {"outer": {"limiter": limiter, "before_user": True}, "between": BETWEEN[kind]}
    return SITES[kind](limiter, view, **options)


@pytest.fixture(params=SITES)
def served(request: pytest.FixtureRequest) -> Iterator[Ask]:
    TRIED.clear()
    with two_stages(request.param, SETTINGS, shown) as site:
        yield lambda method, headers: site.call(method, headers=headers)


@pytest.mark.slow
def test_failed_logins_are_limited_by_ip(served: Ask) -> None:
    """Authentication rejects before the inner middleware, so the outer one counts: of 500 passwords, 5 are tried."""
    statuses = [served("POST", login("ann", f"guess {number}")).status_code for number in range(500)]
    assert statuses == [400] * 5 + [429] * 495
    assert len(TRIED) == 5


def test_users_behind_one_address_have_their_own_limits(served: Ask) -> None:
    """The outer middleware does not count "user|ip" by IP address. Requests without a user share that count."""
    assert [served("GET", login("ann")).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [served("GET", login("bob")).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [served("GET", {}).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_headers_and_verdict_show_both_stages(served: Ask) -> None:
    """An allowed request shows the rules of both; a rejection shows those that reject."""
    response = served("POST", login("bob"))
    assert sorted(response.text.split()) == ["api", "attempts", "plans"]
    policy = response.headers["ratelimit-policy"].split(", ")
    assert policy == ['"attempts";q=5;w=3600', '"api";q=3;w=3600', '"plans";q=20;w=3600']
    assert (response.headers["x-ratelimit-limit"], response.headers["x-ratelimit-remaining"]) == ("3", "2")
    rejected = [served("GET", login("bob")) for _ in range(3)][-1]
    assert (rejected.status_code, rejected.headers["x-ratelimit-limit"]) == (429, "3")
    assert rejected.headers["ratelimit"].startswith('"api";r=0;t=')
    assert len(rejected.headers.get_list("ratelimit")) == 1


def test_a_response_of_the_authentication_shows_the_outer_stage(served: Ask) -> None:
    """The inner middleware was not reached, so the headers are those of the outer one."""
    assert served("POST", login("ann", "wrong")).headers["ratelimit-policy"] == '"attempts";q=5;w=3600'


# -- rules of routes, which the outer middleware does not know -------------------------------------------------

ATTEMPTS = {"name": "attempts", "key": ["ip"], "limits": "5/minute"}
NO_ROUTES_OUTSIDE = {"flask", "django", "async django"}
STRANGER, ANN = login("ann", "wrong"), login("ann")


def behind(site: Build, settings: Any, **options: Any) -> Site:
    """Open a site behind authentication, with a middleware of the protocol around both."""
    limiter = Limiter.from_settings(settings)
    views = {"/login": limited("login", "9/minute", name="own"), "/items/{id}": "item"}
    between = partial(AuthenticationMiddleware, backend=Backend()) if site.name in BY_ASGI else Authenticates
    outer = {"limiter": limiter, "before_user": True}
    return site(limiter, views, outer=outer, between=between, **options)  # type: ignore[no-any-return]


@only(NO_ROUTES_OUTSIDE)
@each(
    ("rule", "paths", "expected"),
    [
        ({"name": "v", "limits": "1/minute", "match": {"view": "login"}}, "/login /items/1 /login", [200, 200, 429]),
        ({"name": "p", "limits": "1/minute", "key": ["path:id"]}, "/items/1 /items/2 /items/1", [200, 200, 429]),
        ({"name": "e", "limits": "1/minute", "key": ["endpoint"]}, "/items/1 /login /items/2", [200, 200, 429]),
        ({"overrides": "own", "limits": "1/minute"}, "/login /items/1 /login", [200, 200, 429]),
    ],
)
def test_the_inner_middleware_decides_the_rules_of_routes(
    site: Build, rule: Any, paths: str, expected: list[int]
) -> None:
    """The outer one cannot know views, endpoints, parameters and decorators. It decides the rule by IP address."""
    served = behind(site, {"rules": [ATTEMPTS, rule]})
    assert [served.call(path=path, headers=ANN).status_code for path in paths.split()] == expected
    assert served.statuses(3, path="/login", headers=STRANGER) == [400, 400, 429]


@only(NO_ROUTES_OUTSIDE - BY_ASGI)
def test_a_function_of_the_inner_middleware_is_not_needed_outside(site: Build) -> None:
    """The rule that needs it is left to the inner one. A feature that neither has is still an error."""
    settings = {"rules": [ATTEMPTS, {"name": "t", "limits": "1/minute", "key": ["tenant"]}]}
    served = behind(site, settings, features={"tenant": lambda request: "acme"})
    assert served.statuses(2, path="/login", headers=ANN) == [200, 429]
    expect_error("the feature 'tenant', but nothing provides it", lambda: behind(site, settings).start())


@only(NO_ROUTES_OUTSIDE)
def test_headers_and_lists_of_both(site: Build) -> None:
    """A list by a path parameter applies inside. The headers of a response show all rules."""
    rule = {"name": "v", "limits": "2/minute", "match": {"view": "login"}}
    served = behind(site, {"rules": [ATTEMPTS, rule], "lists": {"deny": {"path:id": ["7"]}}})
    policy = served.call(path="/login", headers=ANN).headers["ratelimit-policy"]
    assert policy == '"attempts";q=5;w=60, "v";q=2;w=60, "own";q=9;w=60'
    assert [served.call(path=f"/items/{number}", headers=ANN).status_code for number in (7, 8)] == [403, 200]


def test_rules_of_routes_without_an_inner_middleware_are_errors() -> None:
    """Only a middleware with ``before_user`` leaves them to another one."""
    limiter = Limiter([Rule(limits="1/minute", key="form:email", match={"view": "login"})])
    expect_error("have no names", wsgi.RateLimitMiddleware, lambda *_: [], limiter=limiter)
    outer = wsgi.RateLimitMiddleware(lambda *_: [], limiter=limiter, before_user=True)
    assert outer.http_limiter.in_force.decides_at_once  # it reads no body for a rule that it leaves to another one


def test_an_extension_of_flask_may_come_after_the_outer_middleware() -> None:
    """The outer one is then inside its ``wsgi_app``, and still outside the views."""
    app, limiter = flask.Flask("app"), Limiter.from_settings({"rules": [ATTEMPTS]})
    app.add_url_rule("/login", "login", of_flask.limit("1/minute", name="own")(lambda: "login"))
    app.wsgi_app = wsgi.RateLimitMiddleware(Authenticates(app.wsgi_app), limiter=limiter, before_user=True)  # type: ignore[method-assign]
    of_flask.RateLimiter(app, limiter=limiter)
    sent = [ask_wsgi(app, "/login", headers=headers).status_code for headers in (ANN, ANN, STRANGER, STRANGER)]
    assert sent == [200, 429, 400, 400]
    assert ask_wsgi(app, "/login", headers=STRANGER).headers["ratelimit-policy"] == '"attempts";q=5;w=60'


def test_an_entry_of_django_is_the_outer_one_behind_a_middleware_outside() -> None:
    """Three stages: the first entry of Django still leaves the rules by user to the second one."""
    limiter = Limiter.from_settings({"rules": [ATTEMPTS, {"name": "u", "key": ["user|ip"], "limits": "1/minute"}]})
    layers = [*MIDDLEWARE, f"{__name__}.authenticates", *MIDDLEWARE]
    with SITES["django"](limiter, 200, outer={"limiter": limiter, "before_user": True}, middleware=layers) as served:
        sent = [served.call(headers=login(user)).status_code for user in ("ann", "bob", "ann")]
    assert sent == [200, 200, 429]


def test_decorators_count_once_without_rules() -> None:
    """A mounted application has the same limiter as the one around it, and no rules."""
    limiter = Limiter()
    view = of_starlette.limit("4/minute", name="v")(lambda request: PlainTextResponse("a"))
    sub = Starlette(routes=[Route("/a", view)])
    sub.add_middleware(of_starlette.RateLimitMiddleware, limiter=limiter)
    app = Starlette(routes=[Mount("/s", sub)])
    app.add_middleware(of_starlette.RateLimitMiddleware, limiter=limiter)
    responses = [ask(app, "/s/a") for _ in range(6)]
    assert [response.status_code for response in responses] == [200, 200, 200, 200, 429, 429]
    assert responses[0].headers["ratelimit-policy"] == '"v";q=4;w=60'
