"""Typed path parameters and functions of features mean the same in every framework."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import flask
import pytest
from calls import ask as ask_asgi
from calls import ask_wsgi, responding
from django.urls import path, register_converter
from django_calls import hello as django_view
from django_calls import project
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.routing import BaseConverter
from wsgi_calls import listing

from ratelimit_mw import ConfigError, FeatureTypeError, Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

ID = "12345678-1234-5678-1234-567812345678"
Ask = Callable[[str], int]


class Day:
    """Converts a date, whose text has one form."""

    regex = "[0-9-]+"

    def to_python(self, value: str) -> Any:
        return date.fromisoformat(value)

    def convert(self, value: str) -> Any:
        return date.fromisoformat(value)

    def to_url(self, value: Any) -> str:
        return str(value)

    to_string = to_url


class Unnamed(Day):
    """Converts a text to an object whose text is its address in memory."""

    def to_python(self, value: str) -> Any:
        return object()

    convert = to_python


def status_of(ask: Ask, where: str) -> int:
    """Return the status that a client sees: some test clients raise the error of an application."""
    try:
        return ask(where)
    except FeatureTypeError:
        return 500


def limiter(key: str) -> Limiter:
    return Limiter([Rule(name="item", limits="1/minute", key=[key])], clock=ManualClock(1_000_000.0))


def starlette(kind: str, rate: Limiter, **options: Any) -> Ask:
    app = Starlette(routes=[Route(f"/items/{{item:{kind}}}", lambda request: PlainTextResponse())])
    app.add_middleware(RateLimitMiddleware, limiter=rate, **options)
    return lambda where: ask_asgi(app, where).status_code


def with_flask(kind: str, rate: Limiter, **options: Any) -> Ask:
    app = flask.Flask("app")
    app.testing = True
    for name, converter in (("day", Day), ("unnamed", Unnamed)):
        app.url_map.converters[name] = type(name, (converter, BaseConverter), {"part_isolating": False})
    app.add_url_rule(f"/items/<{kind}:item>", "item", lambda item: "")
    RateLimiter(app, limiter=rate, **options)
    return lambda where: app.test_client().get(where).status_code


def with_django(kind: str, rate: Limiter, **options: Any) -> Ask:
    def ask(where: str) -> int:
        limits = {"limiter": rate, **options}
        with project(limits, path(f"items/<{kind}:item>", django_view)) as served:
            return int(served.ask(where).status_code)

    return ask


register_url_convertor("day", type("DayConvertor", (Day, Convertor), {})())
register_url_convertor("unnamed", type("UnnamedConvertor", (Unnamed, Convertor), {})())
register_converter(Day, "day")
register_converter(Unnamed, "unnamed")
everywhere = pytest.mark.parametrize("build", [starlette, with_flask, with_django])


@everywhere
@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        ("int", ["7", "007", "07"]),
        ("uuid", [ID, ID]),
        ("day", ["2026-01-02", "20260102"]),
    ],
)
def test_a_converted_parameter_has_one_count(build: Any, kind: str, spellings: list[str]) -> None:
    """The converter of the route decides what is one value."""
    if kind == "uuid" and build is not with_django:  # Django's converter takes lower case only
        spellings = [*spellings, ID.upper()]
    ask = build(kind, limiter("path:item"))
    assert [ask(f"/items/{spelling}") for spelling in spellings] == [200] + [429] * (len(spellings) - 1)


@everywhere
def test_a_stated_type_has_one_count(build: Any) -> None:
    """The route takes any text, and the rule says what the application makes of it."""
    ask = build("string" if build is with_flask else "str", limiter("path:item as int"))
    assert [ask(f"/items/{text}") for text in ("7", "007", "+7", "7.0", "x", "y", "8")] == [200] + [429] * 3 + [
        *(200, 429, 200)
    ]


@everywhere
def test_a_parameter_without_a_text_is_an_error(build: Any) -> None:
    """Each request would have a key of its own."""
    assert status_of(build("unnamed", limiter("path:item")), "/items/1") == 500


class Person:
    """A user as frameworks keep it."""

    def __init__(self, visits: int) -> None:
        self.id = "ann"
        self.visits = visits


VISITS = iter(range(1_000_000))


def annotated(request: Any) -> Person:
    return Person(next(VISITS))


def anyone(request: Any) -> Any:
    return Person(next(VISITS))


async def awaited(request: Any) -> Person:
    return Person(next(VISITS))


def asgi_alone(kind: str, rate: Limiter, **options: Any) -> Ask:
    app = RateLimitMiddleware(responding(200), limiter=rate, **options)
    return lambda where: ask_asgi(app, where).status_code


def wsgi_alone(kind: str, rate: Limiter, **options: Any) -> Ask:
    app = WSGIMiddleware(listing, limiter=rate, **options)
    return lambda where: ask_wsgi(app, where).status_code


anywhere = pytest.mark.parametrize("build", [starlette, with_flask, with_django, asgi_alone, wsgi_alone])


@anywhere
@pytest.mark.parametrize("read", [annotated, anyone, awaited])
def test_a_user_has_one_count_whatever_changes(build: Any, read: Any) -> None:
    """The key names the attribute that identifies a user."""
    if read is awaited and build in (wsgi_alone, with_django):
        return
    ask = build("string" if build is with_flask else "str", limiter("user.id"), features={"user": read})
    assert [ask("/items/x") for _ in range(6)] == [200] + [429] * 5


@anywhere
@pytest.mark.parametrize("read", [annotated, awaited])
def test_an_annotated_function_is_checked_at_the_start(build: Any, read: Any) -> None:
    """The error says what to write."""
    if read is awaited and build in (wsgi_alone, with_django):
        return
    with pytest.raises(ConfigError, match=r"features\['user'\].*'user' is of type Person.*'user.id'"):
        build("string" if build is with_flask else "str", limiter("user"), features={"user": read})("/items/x")


@anywhere
def test_an_unstable_value_is_never_served(build: Any) -> None:
    """Without an annotation each request is an error: it is never served without its limit."""
    ask = build("string" if build is with_flask else "str", limiter("user"), features={"user": anyone})
    assert [status_of(ask, "/items/x") for _ in range(3)] == [500] * 3


@anywhere
def test_the_built_in_user_has_no_attributes(build: Any) -> None:
    """It is the identity of the user already."""
    with pytest.raises(ConfigError, match=r"uses 'user.id', but the built-in feature 'user' is a text\. Write 'user'"):
        build("string" if build is with_flask else "str", limiter("user.id"))("/items/x")
