"""The options on the pages of Flask-Limiter, slowapi and django-ratelimit: each has two views, one behind each package.

A row has both decorators, the requests, and which of them are served. Other options are in the applications that
``test_migrating.py`` compares.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import django_ratelimit.core
import flask
import pytest
import slowapi
import slowapi.errors
import slowapi.middleware
import slowapi.util
from calls import ask as ask_asgi
from django.core.cache import cache as django_cache
from django.http import HttpResponse
from django.urls import path
from django_calls import MIDDLEWARE, project
from django_ratelimit.decorators import ratelimit
from fastapi import FastAPI, Request, Response
from flask_calls import still
from flask_limiter import ExemptionScope
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address
from folders import page_of
from tables import each

import ratelimit_mw.django
import ratelimit_mw.fastapi
import ratelimit_mw.flask

# slowapi calls asyncio.iscoroutinefunction, which Python 3.14 deprecates in favour of inspect.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")]

NOW = 1_000_000.0
Send = Callable[[str, str, dict[str, str]], int]
Decorate = Callable[[Any], Callable[[Any], Any]]


class Row(NamedTuple):
    """Decorators of both packages by the path of a view, and requests such as ``GET /a Header=value``.

    ``served`` has a 1 for each request that is served. Where both packages differ, ``theirs_served`` is that of the
    other one, and ``page`` is a part of the sentence that names the difference on its page.
    """

    theirs: dict[str, Decorate]
    ours: dict[str, Decorate]
    requests: str
    served: str
    theirs_served: str = ""
    page: str = ""
    options: dict[str, Any] = {}
    """Of the limiter of the other package."""
    rules: list[dict[str, Any]] = []


def one(theirs: Decorate, ours: Decorate, *rest: Any, **more: Any) -> Row:
    """Return a row with one view, ``/a``."""
    return Row({"a": theirs}, {"a": ours}, *rest, **more)


def plain(_: Any) -> Callable[[Any], Any]:
    """Leave a view without a decorator."""
    return lambda view: view


def account(request: Any) -> str:
    return request.headers.get("Account") or ""


def rate_of(request: Any) -> str:
    return "2/hour" if account(request) else "1/hour"


TWO_VIEWS = ("GET /a, GET /a, GET /b, GET /b", "1010")
BY_RATE = ("GET /a, GET /a, GET /a Account=ann, GET /a Account=ann, GET /a Account=ann", "10110")


def default_rule(limits: str, *more: str) -> dict[str, Any]:
    return {"name": "default", "limits": limits, "key": ["view", *more, "ip"]}


ROWS: dict[str, dict[str, Row]] = {
    "flask-limiter": {
        "per_method": one(
            lambda their: their.limit("1/hour", per_method=True),
            lambda our: our.limit("1/hour", key=["method", "ip"]),
            "GET /a, POST /a, GET /a",
            "110",
        ),
        "default_limits_per_method": one(
            plain,
            plain,
            "GET /a, POST /a, GET /a, POST /a",
            "1100",
            options={"default_limits": ["1/hour"], "default_limits_per_method": True},
            rules=[default_rule("1/hour", "method")],
        ),
        "an empty key": one(
            lambda their: their.limit("1/hour", key_func=lambda: account(flask.request)),
            lambda our: our.limit("1/hour", key="header:account"),
            "GET /a, GET /a",
            "11",
        ),
        "one limit on several views": Row(
            dict.fromkeys("ab", cache(lambda their: their.limit("1/hour"))),
            dict.fromkeys("ab", cache(lambda our: our.limit("1/hour", key=["view", "ip"]))),
            *TWO_VIEWS,
        ),
        "a function of the limit": one(
            lambda their: their.limit(lambda: rate_of(flask.request)),
            lambda our: our.limit({"rate": str}, key=["rate", "ip"]),
            *BY_RATE,
        ),
        "exempt with flags": Row(
            {
                "a": lambda their: their.exempt(flags=ExemptionScope.DEFAULT),
                "b": lambda their: their.exempt(flags=ExemptionScope.APPLICATION),
                "c": plain,
            },
            {"a": lambda our: our.exempt("default"), "b": lambda our: our.exempt("application"), "c": plain},
            "GET /a, GET /a, GET /b, GET /b, GET /c, GET /a",
            "111010",
            options={"default_limits": ["1/hour"], "application_limits": ["3/hour"]},
            rules=[default_rule("1/hour"), {"name": "application", "limits": "3/hour"}],
        ),
    }
    | {
        f"strategy {strategy}": one(
            lambda their: their.limit("2/hour"),
            lambda our, algorithm=algorithm: our.limit("2/hour", algorithm=algorithm),
            "GET /a, GET /a, GET /a",
            "110",
            options={"strategy": strategy},
        )
        for strategy, algorithm in (
            ("fixed-window", "fixed-window"),
            ("moving-window", "sliding-window-log"),
            ("sliding-window-counter", "sliding-window-counter"),
        )
    },
    "slowapi": {
        "application_limits": one(
            lambda their: their.limit("5/hour"),
            lambda our: our.limit("5/hour"),
            "GET /a, GET /a",
            "10",
            "11",
            "which applies to views with a decorator, too",
            options={"application_limits": ["1/hour"]},
            rules=[{"name": "application", "limits": "1/hour"}],
        ),
        "functions with the same name": Row(
            {"a": lambda their: their.limit("1/hour"), "a/2": lambda their: their.limit("2/hour")},
            {"a": lambda our: our.limit("1/hour"), "a/2": lambda our: our.limit("2/hour")},
            "GET /a/2, GET /a/2, GET /a/2",
            "110",
            "100",
            "Functions with the same name in one module have their own limits",
        ),
        "a misspelt limit": one(
            lambda their: their.limit("1/our"),
            lambda our: our.limit("1/hour"),
            "GET /a, GET /a",
            "10",
            "11",
            "A string that cannot be parsed is an error. slowapi logs it",
        ),
    }
    | {
        f"key_style {style}": Row(
            {"a/{n}": lambda their: their.limit("1/hour")},
            {"a/{n}": lambda our, key=key: our.limit("1/hour", key=key)},
            "GET /a/1, GET /a/2, GET /a/1",
            served,
            options={"key_style": style},
        )
        for style, key, served in (("url", ["path", "ip"], "110"), ("endpoint", ["ip"], "100"))
    },
    "django-ratelimit": {
        f"key {key}": one(
            lambda _, key=key: ratelimit(key=key, rate="1/d"),
            lambda our, key=key: our.limit("1/d", key=key),
            requests,
            "1010",
        )
        for key, requests in {
            "user": "GET /a Account=ann, GET /a Account=ann, GET /a Account=bob, GET /a Account=bob",
            "user_or_ip": "GET /a Account=ann, GET /a Account=ann, GET /a, GET /a",
        }.items()
    }
    | {
        "IPv6 clients by network": one(
            lambda _: ratelimit(key="ip", rate="1/d"),
            lambda our: our.limit("1/d", key="ip"),
            "GET /a Client=2001:db8:1::1, GET /a Client=2001:db8:1::2, GET /a Client=2001:db8:2::1",
            "101",
        ),
        "several values of a field": one(
            lambda _: ratelimit(key="get:q", rate="1/d"),
            lambda our: our.limit("1/d", key="get:q"),
            "GET /a?q=a&q=b, GET /a?q=b, GET /a?q=a, GET /a?q=c&q=d",
            "1110",
            "1011",
            "A field that occurs twice with different values",
        ),
        "a rate of None": one(
            lambda _: ratelimit(key="ip", rate=lambda group, each: None if account(each) == "inside" else "1/d"),
            lambda our: our.limit("1/d", match={"header:account": "bob"}),
            "GET /a Account=inside, GET /a Account=inside, GET /a Account=bob, GET /a Account=bob",
            "1110",
        ),
        "visitors who are not signed in": one(
            lambda _: ratelimit(key="user", rate="1/d"),
            lambda our: our.limit("1/d", key="user"),
            "GET /a Client=192.0.2.1, GET /a Client=192.0.2.2",
            "11",
            "10",
            "A rule does not apply to a request without its feature",
        ),
        "one limit on several views": Row(
            dict.fromkeys("ab", cache(lambda _: ratelimit(key="ip", rate="1/d"))),
            dict.fromkeys("ab", cache(lambda our: our.limit("1/d", key=["view", "ip"]))),
            *TWO_VIEWS,
        ),
        "a function of the rate": one(
            lambda _: ratelimit(key="ip", rate=lambda group, each: rate_of(each)),
            lambda our: our.limit({"rate": str}, key=["rate", "ip"]),
            *BY_RATE,
        ),
    },
}


def view_of(path: str, kind: str) -> Any:
    """Return a view with the first part of its path as its name. Flask-Limiter and slowapi know views by name."""

    async def fastapi_view(request: Request, response: Response) -> str:
        return "hello"

    def flask_view(**_: Any) -> str:
        return "hello"

    def django_view(request: Any) -> HttpResponse:
        return HttpResponse("hello")

    view: Any = {"fastapi": fastapi_view, "flask": flask_view, "django": django_view}[kind]
    view.__qualname__ = view.__name__ = path.partition("/")[0]
    return view


@contextmanager
def in_flask(row: Row) -> Iterator[list[Send]]:
    theirs, ours = flask.Flask("theirs"), flask.Flask("ours")
    limiter = FlaskLimiter(get_remote_address, app=theirs, storage_uri="memory://", **row.options)
    ratelimit_mw.flask.RateLimiter(ours, limiter=still({"rules": row.rules}), features={"rate": rate_of})
    for app, limits, views in ((theirs, limiter, row.theirs), (ours, ratelimit_mw.flask, row.ours)):
        for where, decorate in views.items():
            app.add_url_rule(f"/{where}", where, decorate(limits)(view_of(where, "flask")), methods=["GET", "POST"])

    def sending(app: flask.Flask) -> Send:
        return lambda method, where, headers: app.test_client().open(where, method=method, headers=headers).status_code

    yield [sending(theirs), sending(ours)]


@contextmanager
def in_fastapi(row: Row) -> Iterator[list[Send]]:
    theirs, ours = FastAPI(), FastAPI()
    theirs.state.limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, **row.options)
    handler: Any = slowapi._rate_limit_exceeded_handler
    theirs.add_exception_handler(slowapi.errors.RateLimitExceeded, handler)
    theirs.add_middleware(slowapi.middleware.SlowAPIMiddleware)
    limits = {
        "limiter": still({"rules": row.rules}),
    }
    ours.add_middleware(ratelimit_mw.fastapi.RateLimitMiddleware, **limits)
    for app, limit, views in ((theirs, theirs.state.limiter, row.theirs), (ours, ratelimit_mw.fastapi, row.ours)):
        for where, decorate in views.items():
            app.add_api_route(f"/{where}", decorate(limit)(view_of(where, "fastapi")), methods=["GET", "POST"])

    def sending(app: FastAPI) -> Send:
        return lambda method, where, headers: ask_asgi(app, where, method, headers=headers).status_code

    yield [sending(theirs), sending(ours)]


class User:
    """A user that is signed in when it has a name."""

    def __init__(self, name: str) -> None:
        self.pk = name or None
        self.is_authenticated = bool(name)


def signed_in(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A middleware that takes the user from a header of the client."""

    def handle(request: Any) -> Any:
        request.user = User(account(request))
        return get_response(request)

    return handle


@contextmanager
def in_django(row: Row) -> Iterator[list[Send]]:
    django_cache.clear()
    views = [
        path(f"{side}/{where}", decorate(ratelimit_mw.django)(view_of(where, "django")))
        for side, decorators in (("theirs", row.theirs), ("ours", row.ours))
        for where, decorate in decorators.items()
    ]
    limits = {"limiter": still({"rules": row.rules}), "features": {"rate": rate_of}}
    with project(limits, *views, middleware=[f"{__name__}.signed_in", *MIDDLEWARE]) as served:

        def sending(side: str, rejected: int) -> Send:
            def send(method: str, where: str, headers: dict[str, str]) -> int:
                client = headers.pop("Client", "192.0.2.7")
                status: int = served.ask(f"/{side}{where}", method, client, headers=headers).status_code
                return {rejected: 429}.get(status, status)

            return send

        yield [sending("theirs", 403), sending("ours", 429)]


SERVED = {"flask-limiter": in_flask, "slowapi": in_fastapi, "django-ratelimit": in_django}


@each(("package", "name"), [(package, name) for package, rows in ROWS.items() for name in rows])
def test_both_packages_serve_the_same_requests(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still. The page of the package names each difference."""
    monkeypatch.setattr(django_ratelimit.core, "time", SimpleNamespace(time=lambda: NOW))
    row = ROWS[package][name]
    found = []
    with SERVED[package](row) as sides:
        for send in sides:
            asked = [request.split() for request in row.requests.split(", ")]
            statuses = [send(method, where, dict(part.split("=") for part in more)) for method, where, *more in asked]
            assert set(statuses) <= {200, 429}
            found.append("".join("01"[status == 200] for status in statuses))
    assert found == [row.theirs_served or row.served, row.served]
    if row.page:
        text = " ".join(page_of(f"from-{package}").read_text().split())
        assert row.page in text
