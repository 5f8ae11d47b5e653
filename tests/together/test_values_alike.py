"""Typed path parameters mean the same in every framework."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import flask
from calls import ask as ask_asgi
from django.urls import path, register_converter
from django_calls import hello as django_view
from django_calls import project
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tables import each
from werkzeug.routing import BaseConverter

from ratelimit_mw import FeatureTypeError, Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.testing import ManualClock

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
everywhere = each("build", [starlette, with_flask, with_django])


@everywhere
@each(
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
def test_a_parameter_without_a_text_is_an_error(build: Any) -> None:
    """Each request would have a key of its own."""
    assert status_of(build("unnamed", limiter("path:item")), "/items/1") == 500
