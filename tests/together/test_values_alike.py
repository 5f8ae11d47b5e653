"""Typed path parameters mean the same in every framework."""

from collections.abc import Callable
from contextlib import suppress
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


def in_starlette(kind: str, limiter: Limiter) -> Ask:
    app = Starlette(routes=[Route(f"/items/{{item:{kind}}}", lambda request: PlainTextResponse())])
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    return lambda where: ask_asgi(app, where).status_code


def in_flask(kind: str, limiter: Limiter) -> Ask:
    app = flask.Flask("app")
    app.testing = True
    for name, converter in (("day", Day), ("unnamed", Unnamed)):
        app.url_map.converters[name] = type(name, (converter, BaseConverter), {"part_isolating": False})
    app.add_url_rule(f"/items/<{kind}:item>", "item", lambda item: "")
    RateLimiter(app, limiter=limiter)
    return lambda where: app.test_client().get(where).status_code


def in_django(kind: str, limiter: Limiter) -> Ask:
    def ask(where: str) -> int:
        with project({"limiter": limiter}, path(f"items/<{kind}:item>", django_view)) as served:
            return int(served.ask(where).status_code)

    return ask


for name, converter in (("day", Day), ("unnamed", Unnamed)):
    register_url_convertor(name, type(f"{name}_convertor", (converter, Convertor), {})())
    register_converter(converter, name)


@each("build", [in_starlette, in_flask, in_django])
@each(
    ("kind", "spellings"),
    [("int", ["7", "007", "07"]), ("uuid", [ID, ID.upper()]), ("day", ["2026-01-02", "20260102"]), ("unnamed", ["1"])],
)
def test_a_converted_parameter_has_one_count(build: Any, kind: str, spellings: list[str]) -> None:
    """The converter of the route decides what is one value. A value without a text of its own is an error."""
    ask = build(
        kind, Limiter([Rule(name="item", limits="1/minute", key=["path:item"])], clock=ManualClock(1_000_000.0))
    )
    if kind == "unnamed":  # each request would have a key of its own
        with suppress(FeatureTypeError):  # some test clients raise the error of an application
            assert ask("/items/1") == 500
        return
    if kind == "uuid" and build is in_django:  # whose converter takes lower case only
        spellings = [ID, ID]
    assert [ask(f"/items/{spelling}") for spelling in spellings] == [200] + [429] * (len(spellings) - 1)
