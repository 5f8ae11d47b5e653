"""Ready views with the usage of a client, a dependency of FastAPI, and rules that fail."""

from __future__ import annotations

import json
from typing import Annotated, Any

from calls import ask
from django.urls import path
from django_calls import project
from fastapi import Depends, FastAPI, Request
from flask_calls import app_of
from flask_calls import ask as ask_flask
from starlette.applications import Starlette
from starlette.routing import Route

from ratelimit_mw import Limiter, Rule
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
