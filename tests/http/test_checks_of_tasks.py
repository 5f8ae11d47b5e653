"""Checks in tasks and threads of a request: groups of tasks, async functions of features, views that are not async."""

import asyncio
from typing import Any

import anyio.from_thread
import pytest
from asgiref.sync import async_to_sync
from calls import ask
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette_apps import application
from tables import each
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.django import acheck
from ratelimit_mw.starlette import RateLimitMiddleware, check, usage
from ratelimit_mw.testing import ManualClock

POST = Rule(name="post", limits="1/minute", match={"view": ""})


async def check_in_groups(check: Any, request: Any) -> None:
    """Check in a task of a group in a group."""
    async with asyncio.TaskGroup(), asyncio.TaskGroup() as group:
        group.create_task(check(request, "post"))


def test_a_rejection_in_a_group_of_tasks_closes_a_websocket() -> None:
    """It closes with "try again later", as without a group."""

    async def view(websocket: Any) -> None:
        await websocket.accept()
        for _ in range(2):
            await check_in_groups(check, websocket)

    assert kinds(connect(application([WebSocketRoute("/ws", view)], POST))) == ["accept", 1013]


async def too_many(request: Any, error: Any) -> JSONResponse:
    return JSONResponse({"error": "wait"}, status_code=error.verdict.status)


@each("kind", [RateLimitExceeded, 429])
def test_a_handler_for_requests_closes_an_open_websocket(kind: Any) -> None:
    """An open connection cannot carry its response. Before the connection is accepted, it is the response."""

    async def view(websocket: Any) -> None:
        if "early" in websocket.query_params:
            await check(websocket, "post")
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        for _ in range(2):
            await check(websocket, "post")

    app = application([WebSocketRoute("/ws", view)], POST, exception_handlers={kind: too_many})
    assert kinds(connect(app, said=["hi"])) == ["accept", "hi", 1013]
    early = connect(app, query_string=b"early", extensions={"websocket.http.response": {}})
    assert [message["type"] for message in early] == ["websocket.http.response.start", "websocket.http.response.body"]


def test_checks_at_the_same_time_wait_for_one_call_of_identify() -> None:
    """An async function of features is called once, however many checks need it first."""
    calls: list[Any] = []

    async def identify(request: Any) -> dict[str, str]:
        calls.append(request)
        await asyncio.sleep(0)
        return {"user": "ann"}

    async def view(request: Any) -> PlainTextResponse:
        await asyncio.gather(*(check(request, name) for name in ("a", "b", "a")))
        return PlainTextResponse("ok")

    rules = [Rule(name=name, limits="9/minute", key=["user"], match={"view": ""}) for name in ("a", "b")]
    response = ask(application([Route("/", view)], *rules, features=identify))
    assert (response.status_code, response.headers["RateLimit"]) == (200, '"a";r=7;t=60, "b";r=8;t=60')
    assert len(calls) == 1


@each("ending", ["error", "cancelled"])
def test_a_call_of_identify_that_fails_is_made_again(ending: str) -> None:
    """A check after the failed one, or at the same time, calls the function again."""
    calls: list[Any] = []

    async def identify(request: Any) -> dict[str, str]:
        calls.append(request)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise asyncio.CancelledError if ending == "cancelled" else LookupError
        return {"user": "ann"}

    async def view(request: Any) -> PlainTextResponse:
        results = await asyncio.gather(*(check(request, "a") for _ in range(2)), return_exceptions=True)
        return PlainTextResponse(f"{sum(isinstance(result, BaseException) for result in results)} failed")

    rule = Rule(name="a", limits="9/minute", key=["user"], match={"view": ""})
    assert ask(application([Route("/", view)], rule, features=identify)).text == "1 failed"
    assert len(calls) == 2


CALLS: dict[str, Any] = {
    "check": check,
    "reset": check.reset,
    "usage": usage,
}


@each("name", CALLS)
def test_a_view_that_is_not_async_learns_that_check_is(name: str) -> None:
    """Nothing would await the check, so it would limit nothing."""

    def view(request: Any) -> PlainTextResponse:
        with pytest.raises(ConfigError, match=r"is not async. Write async def, or call anyio.from_thread.run\("):
            CALLS[name](request, "post")
        return PlainTextResponse("ok")

    assert ask(application([Route("/", view)], POST)).text == "ok"


def test_a_view_that_is_not_async_checks_on_the_event_loop() -> None:
    """``anyio`` is the way that Starlette itself uses."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=Limiter([POST], clock=ManualClock(1_000_000.0)))

    @app.get("/")
    def view(request: Request) -> str:
        anyio.from_thread.run(check, request, "post")
        return "ok"

    assert [ask(app).status_code for _ in range(2)] == [200, 429]


def test_a_view_of_django_awaits_acheck_by_asgiref() -> None:
    """``async_to_sync`` warns of functions that are not async."""

    def view(request: Any) -> HttpResponse:
        async_to_sync(acheck)(request, "post")
        return HttpResponse("ok")

    source = {"limiter": Limiter([POST], clock=ManualClock(1_000_000.0))}
    with project(source, path("", view)) as served:
        assert [served.ask("/").status_code for _ in range(2)] == [200, 429]
