"""Ready views with the usage of a client, a dependency of FastAPI, and rules that fail."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any

import flask
import pytest
from calls import ask
from django.urls import path
from django_calls import project
from fastapi import Depends, FastAPI, Request
from flask_calls import app_of
from flask_calls import ask as ask_flask
from starlette.applications import Starlette
from starlette.routing import Route
from tables import each

from ratelimit_mw import ConfigError, Limiter, MissingMiddlewareError, Rule
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.testing import ManualClock

RULES = [
    Rule(name="both", limits=["10/minute", "15/hour"]),
    Rule(name="user", limits="1/minute", key=["user"], when_missing="reject", match={"view": ""}),
    Rule(name="watched", limits="1/minute", mode="shadow"),
]
LEFT = {"both": {"limit": 10, "remaining": 9, "reset_after": 60.0}}


def rate() -> Limiter:
    return Limiter(RULES, clock=ManualClock(1_000_000.0))


def check_view(response: Any) -> None:
    assert json.loads(response.content if hasattr(response, "content") else response.data) == LEFT
    assert response.headers["Cache-Control"] == "no-store"


def test_a_ready_view_responds_with_json() -> None:
    """It shows the limit with the smallest share left, and neither shadow rules nor rules without a key."""
    with project(rate(), path("u", in_django.usage.view())) as served:
        check_view(served.ask("/u"))
    with project(rate(), path("u", in_django.ausage.view("both")), is_async=True) as served:
        check_view(served.ask("/u"))
    app = Starlette(routes=[Route("/u", in_starlette.usage.view())])
    app.add_middleware(in_starlette.RateLimitMiddleware, limiter=rate())
    check_view(ask(app, "/u"))
    check_view(ask_flask(app_of(rate(), {"/u": in_flask.usage.view("both", "watched")}), "/u"))


def test_clients_see_no_modules_in_a_ready_view() -> None:
    """A rule without a name has the name of its view, as in the headers. Your code may use the whole name."""
    app = FastAPI()
    app.add_middleware(in_fastapi.RateLimitMiddleware, settings={})

    @app.get("/named")
    @in_fastapi.limit("5/minute")
    async def named(request: Request) -> Any:
        return await in_fastapi.usage(request, f"{__name__}.{named.__qualname__}")

    app.add_route("/ready", in_fastapi.usage.view())
    assert [*ask(app, "/named").json()] == [f"{__name__}.{named.__qualname__}"]
    assert [*ask(app, "/ready").json()] == ["named"]


def test_a_dependency_of_fastapi_is_the_usage() -> None:
    """The value may be returned as it is."""
    app = FastAPI()
    app.add_middleware(in_fastapi.RateLimitMiddleware, limiter=rate())

    @app.get("/u")
    async def view(left: Annotated[dict[str, Any], Depends(in_fastapi.Usage("both"))]) -> Any:
        return left

    app.add_route("/ready", in_fastapi.usage.view())
    assert ask(app, "/u").json() == LEFT
    assert ask(app, "/ready").json()["both"]["remaining"] == 8


def test_two_limiters_show_all_their_rules() -> None:
    """An inner middleware with other rules adds them."""
    app = Starlette(routes=[Route("/u", in_starlette.usage.view())])
    for name in ("inner", "outer"):
        rules = Limiter([Rule(name=name, limits="5/minute")])
        app.add_middleware(in_starlette.RateLimitMiddleware, limiter=rules)
    assert {rule: left["remaining"] for rule, left in ask(app, "/u").json().items()} == {"outer": 4, "inner": 4}


def fail(_: Any) -> str:
    raise OSError


@each("usage", [in_starlette.usage, in_flask.usage])
def test_a_rule_that_fails_hides_no_other_rule(usage: Any) -> None:
    """A function of limits fails for one rule, the function of a feature for another, which only its own route has."""
    down = Rule(name="down", limits=fail, match={"view": ""})
    team = Rule(name="team", limits="1/s", key=["team"], match={"path": "/team"}, unrouted=True)
    limiter = Limiter([*RULES, down, team], clock=ManualClock(1_000_000.0))
    if usage is in_flask.usage:
        app = flask.Flask("usage")
        app.add_url_rule("/u", "u", usage.view())
        app.add_url_rule("/named", "named", usage.view("team"))
        in_flask.RateLimiter(app, limiter=limiter, features={"team": fail})
        left, named = json.loads(ask_flask(app, "/u").data), lambda: ask_flask(app, "/named")
    else:
        star = Starlette(routes=[Route("/u", usage.view()), Route("/named", usage.view("team"))])
        star.add_middleware(in_starlette.RateLimitMiddleware, limiter=limiter, features={"team": fail})
        left, named = ask(star, "/u").json(), lambda: ask(star, "/named")
    assert {name: each["remaining"] for name, each in left.items()} == {"both": 9, "down": 0}
    with suppress(OSError):
        assert named().status_code == 500


def test_usage_needs_the_middleware() -> None:
    """Without it there is nothing to show."""
    with pytest.raises(MissingMiddlewareError), flask.Flask("app").test_request_context():
        in_flask.usage()


def test_a_value_that_cannot_be_in_a_key_is_not_left_out() -> None:
    """The error says what the function of the feature returned, even without names."""
    app = flask.Flask("usage")
    app.testing = True
    app.add_url_rule("/u", "u", in_flask.usage.view())
    rule = Rule(name="team", limits="1/s", key=["team"], match={"path": "/team"}, unrouted=True)
    in_flask.RateLimiter(app, limiter=Limiter([rule]), features={"team": fail_to_configure})
    with pytest.raises(ConfigError, match="no team"):
        ask_flask(app, "/u")


def fail_to_configure(_: Any) -> str:
    raise ConfigError("no team")
