"""Limits of functions that a view calls: when they are added, by which name, and what a mistake in one of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from calls import ask
from flask import Flask
from flask_calls import ask as ask_flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.starlette import limit
from ratelimit_mw.testing import ManualClock


class StarletteSite:
    """Views that call functions, by path. Further views may be added."""

    def __init__(self, limiter: Limiter, **views: Callable[[], Any]) -> None:
        self.app = Starlette()
        self.app.add_middleware(in_starlette.RateLimitMiddleware, limiter=limiter)
        for path, function in views.items():
            self.add(path, function)

    def add(self, path: str, function: Callable[[], Any]) -> None:
        async def view(_: Any) -> PlainTextResponse:
            return PlainTextResponse(str(function()))

        self.app.routes.append(Route(f"/{path}", view))

    def status(self, path: str) -> int:
        try:
            return ask(self.app, f"/{path}").status_code
        except (ConfigError, KeyError):
            return 500


class FlaskSite(StarletteSite):
    def __init__(self, limiter: Limiter, **views: Callable[[], Any]) -> None:
        self.flask = Flask("functions")
        in_flask.RateLimiter(self.flask, limiter=limiter)
        for path, function in views.items():
            self.add(path, function)

    def add(self, path: str, function: Callable[[], Any]) -> None:
        self.flask.view_functions[path] = lambda: str(function())
        self.flask.url_map.add(self.flask.url_rule_class(f"/{path}", endpoint=path))

    def status(self, path: str) -> int:
        return ask_flask(self.flask, f"/{path}").status_code


everywhere = pytest.mark.parametrize("kind", [StarletteSite, FlaskSite], ids=["Starlette", "Flask"])


def rate() -> Limiter:
    return Limiter([Rule(name="site", limits="100/minute")], clock=ManualClock(1_000_000.0))


def hidden(name: str) -> Callable[[], str]:
    """Return a function as a decorator without ``functools.wraps`` does: all have one name."""

    def wrapper() -> str:
        return name

    return wrapper


@everywhere
def test_a_mistake_in_one_function_leaves_the_others_alone(kind: Any) -> None:
    """Each call of the wrong function is an error. Other functions and later routes have their limits."""
    good = limit("1/minute", unrouted=True)(hidden("good"))
    wrong = [
        limit("1/minute", key=["tenant"], unrouted=True)(hidden("by a feature that nothing provides")),
        limit("1/minute", name="site", unrouted=True)(hidden("by a name that is used")),
    ]
    site = kind(rate(), good=good, tenant=wrong[0], name=wrong[1])
    assert [site.status(path) for path in ("tenant", "name", "good", "tenant", "name", "good")] == [
        *(500, 500, 200),
        *(500, 500, 429),
    ]
    site.add("later", limit("1/minute", unrouted=True)(hidden("later")))
    assert [site.status("later") for _ in range(2)] == [200, 429]


@everywhere
def test_functions_of_a_module_that_a_view_imports_have_their_own_limits(kind: Any) -> None:
    """The line of the decorator distinguishes them, even when a view decorates them again in each request."""

    def function(number: int) -> str:
        functions = [
            limit("1/minute", unrouted=True)(hidden("mail")),
            limit("1/minute", unrouted=True)(hidden("sms")),
            limit("2/minute", unrouted=True)(hidden("fax")),
        ]
        return functions[number]()

    site = kind(rate(), mail=lambda: function(0), sms=lambda: function(1), fax=lambda: function(2))
    assert [site.status(path) for path in ("sms", "mail", "fax") * 3] == [200] * 3 + [429, 429, 200] + [429] * 3


@everywhere
def test_a_function_that_is_called_later_changes_no_counts(kind: Any) -> None:
    """Its rule is numbered after those that count."""
    mail = limit("1/minute", unrouted=True)(hidden("mail"))
    sms = limit("1/minute", unrouted=True)(hidden("sms"))
    site = kind(rate(), mail=mail, sms=sms)
    assert [site.status(path) for path in ("sms", "mail", "sms", "mail")] == [200, 200, 429, 429]


@everywhere
def test_two_applications_of_one_limiter_call_one_function(kind: Any) -> None:
    """Both know its rule, and it has one count."""
    limiter, mail = rate(), limit("2/minute", unrouted=True)(hidden("mail"))
    sites = [kind(limiter, mail=mail) for _ in range(2)]
    assert [site.status("mail") for site in (*sites, *sites)] == [200, 200, 429, 429]


@pytest.mark.parametrize("use", ["usage", "peek"])
@everywhere
def test_a_function_has_its_name_before_its_first_call(kind: Any, use: str) -> None:
    """It is its own name, or that of the function."""
    function, name = hidden("mail"), f"mail-{kind.__name__}"
    if use == "peek":
        function.__qualname__ = function.__name__ = name
        name = f"{__name__}.{name}"
    mail = limit("1/minute", unrouted=True, **{} if use == "peek" else {"name": name})(function)
    site = kind(rate())
    if kind is FlaskSite:
        read: Any = in_flask.usage if use == "usage" else in_flask.check.peek
        site.add("left", lambda: read(name))
    else:

        async def view(request: Any) -> PlainTextResponse:
            read: Any = in_starlette.usage if use == "usage" else in_starlette.check.peek
            return PlainTextResponse(str(await read(request, name)))

        site.app.routes.append(Route("/left", view))
    site.add("mail", mail)
    assert [site.status(path) for path in ("left", "mail", "mail", "left")] == [200, 200, 429, 200]


@everywhere
def test_the_settings_override_a_function_that_no_view_has_called(kind: Any) -> None:
    """The application starts, and starts again in the next test: its decorator has one line."""
    settings = load_settings({"rules": [{"overrides": f"sms-{kind.__name__}", "limits": "1/minute"}]})
    for _ in range(2):
        sms = [limit("9/minute", name=f"sms-{kind.__name__}", unrouted=True)(hidden(each)) for each in "ab"]
        site = kind(Limiter.from_settings(settings, ManualClock(1_000_000.0)), sms=sms[0])
        assert [site.status("sms") for _ in range(2)] == [200, 429]


def test_an_override_of_two_functions_is_still_an_error() -> None:
    """Each of the two may belong to another application."""
    functions = [limit("9/minute", name="twice", unrouted=True)(hidden("a"))]
    functions.append(limit("9/minute", name="twice", unrouted=True)(hidden("b")))
    settings = load_settings({"rules": [{"overrides": "twice", "limits": "1/minute"}]})
    site = FlaskSite(Limiter.from_settings(settings), a=functions[0])
    assert site.status("a") == 500


@everywhere
def test_an_object_of_a_limited_class_is_limited_when_it_is_called(kind: Any) -> None:
    """A class without any method that code could enter is an error at its decorator."""

    class Mailer:
        def __call__(self) -> str:
            return "sent"

    limited = limit("2/minute")(limit("1/minute", unrouted=True)(Mailer))
    site = kind(rate(), mail=lambda: limited()())
    assert [site.status("mail") for _ in range(2)] == [200, 429]

    class Sender:
        def send(self) -> None: ...

    assert limit("1/minute")(Sender) is Sender  # a route may lead to it
    with pytest.raises(ConfigError, match=r"test_called_functions.py:\d+: .*Sender is a class without dispatch or __c"):
        limit("1/minute", unrouted=True)(Sender)
