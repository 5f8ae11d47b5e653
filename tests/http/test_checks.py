"""``check`` and limited helpers outside a request, after its response and in an own event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import flask
import flask_calls
import pytest
from calls import aask
from flask import Flask
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette_apps import application

from ratelimit_mw import Limiter, MissingMiddlewareError, Rule
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.http.limits import DECIDED
from ratelimit_mw.testing import ManualClock, limits_off

QUEUED: Any = {"limits": "10/s burst 3", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}


def test_without_a_middleware_a_check_is_an_error() -> None:
    """A limit is never silently absent. With limits_off there is none to decide."""
    app = Flask("app")
    with app.test_request_context("/"):
        with pytest.raises(MissingMiddlewareError, match=r"check\('post'\) .* no RateLimitMiddleware handled"):
            in_flask.check("post")
        with limits_off():
            assert in_flask.check("post").rules == ()
            in_flask.check.reset("post")


def test_without_limits_the_async_check_decides_nothing() -> None:
    """The same holds for async views."""

    async def scenario() -> None:
        request: Any = SimpleNamespace(scope={})
        assert await in_starlette.check(request, "post")
        await in_starlette.check.reset(request, "post")

    with limits_off():
        asyncio.run(scenario())


def test_a_check_after_the_response_decides_at_once() -> None:
    """A background task finds the admission of its request, whose slots are returned by then."""
    limiter = Limiter([Rule(name="job", limits="1 concurrent", match={"view": ""})], clock=ManualClock(1_000_000.0))
    app = flask_calls.app_of(limiter)
    with app.test_request_context("/", environ_base={"REMOTE_ADDR": "192.0.2.7"}):
        app.preprocess_request()
        admission: Any = next(iter(flask.request.environ[DECIDED].values()))
        admission.end(200)
        assert [in_flask.check("job").allowed for _ in range(3)] == [True] * 3


def test_a_background_task_checks_after_the_response() -> None:
    """The slots of such a check are returned at once."""
    limiter = Limiter([Rule(name="job", limits="1 concurrent", match={"view": ""})], clock=ManualClock(1_000_000.0))
    requests: list[Any] = []

    async def view(request: Any) -> PlainTextResponse:
        requests.append(request)
        return PlainTextResponse("ok")

    app = application([Route("/", view)], limiter=limiter)

    async def scenario() -> list[bool]:
        await aask(app)
        return [(await in_starlette.check(requests[0], "job")).allowed for _ in range(3)]

    assert asyncio.run(scenario()) == [True] * 3
