"""``check`` in a view, often, in threads, tasks and streams, and ready views with the usage of a client."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import anyio.from_thread
import pytest
from asgiref.sync import async_to_sync
from calls import ask, ask_wsgi
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette_apps import application
from tables import each
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rejection, Rule
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw import wsgi as in_wsgi
from ratelimit_mw.http.admission import ADMISSION
from ratelimit_mw.starlette import check
from ratelimit_mw.testing import ManualClock

# -- many checks in one request -------------------------------------------------------------------------------


def rule(limits: str, **options: Any) -> Rule:
    return Rule(name="mail", limits=limits, match={"view": ""}, **options)


def limited(*rules: Rule) -> Limiter:
    return Limiter(rules, clock=ManualClock(1_000_000.0))


def left(limiter: Limiter, **features: Any) -> int:
    plan = limiter.rules.plan_for_rule("mail", None)
    return limiter.decide(plan, {"ip": "192.0.2.7", **features}, 0, False).decisions[0].remaining


def test_a_stream_keeps_no_verdicts() -> None:
    """A client may choose how long it streams. The rules count all checks, and slots are held until the end."""
    limiter = limited(rule("100/minute"), Rule(name="busy", limits="9 concurrent", match={"view": ""}))
    kept: list[int] = []

    async def view(request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(20):
                await check(request, "mail")
                yield "part"
            await check(request, "busy")
            kept.append(len(request.scope[ADMISSION].verdicts))

        return StreamingResponse(parts())

    assert ask(application([Route("/", view)], limiter=limiter)).text == "part" * 20
    assert (kept, left(limiter)) == ([2], 80)


@pytest.mark.usefixtures("hasty")
def test_threads_of_a_request_lose_no_slot() -> None:
    """Eight threads check at the same time. Each slot is returned at the end of the response."""
    limiter = limited(rule("8 concurrent"))
    with ThreadPoolExecutor(8) as threads:

        def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            for checked in [threads.submit(in_wsgi.check, environ, "mail") for _ in range(8)]:
                assert checked.result()
            start_response("200 OK", [])
            return [b"ok"]

        guarded = in_wsgi.RateLimitMiddleware(app, limiter=limiter)
        assert {ask_wsgi(guarded).status_code for _ in range(50)} == {200}
    assert left(limiter) == 8


# -- tasks and threads ----------------------------------------------------------------------------------------


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


OWN = Rejection(429, [], b"own")


async def too_many(request: Any, error: Any) -> JSONResponse:
    return JSONResponse({"error": "wait"}, status_code=error.verdict.status)


@each("kind", [RateLimitExceeded, HTTPException, 429])
def test_a_handler_for_requests_closes_an_open_websocket(kind: Any) -> None:
    """An open connection cannot carry its response. Before it is accepted, those of some servers can."""

    async def view(websocket: Any) -> None:
        if "early" in websocket.query_params:
            await check(websocket, "post")
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        for _ in range(2):
            await check(websocket, "post")

    app = application([WebSocketRoute("/ws", view)], POST, exception_handlers={kind: too_many})
    assert kinds(connect(app, said=["hi"])) == ["accept", "hi", 1013]
    assert kinds(connect(app, query_string=b"early")) == [1008]
    early = connect(app, query_string=b"early", extensions={"websocket.http.response": {}})
    assert [message["type"] for message in early] == ["websocket.http.response.start", "websocket.http.response.body"]


@each("kind", [RateLimitExceeded, HTTPException, 429])
@each("is_mounted", [False, True])
@each("is_plain", [False, True])
def test_handlers_take_the_rejections_of_views(kind: Any, is_mounted: bool, is_plain: bool) -> None:
    """That of a ``Verdict`` is no HTTPException. A response whose status does not count has the headers, too."""

    async def view(request: Any) -> PlainTextResponse:
        try:
            await check(request, "post")
        except RateLimitExceeded as error:
            if is_plain:
                error.verdict.raise_for_limit()
            raise
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", view)], exception_handlers={kind: too_many})
    app = Starlette(routes=[Mount("/in", app=app)]) if is_mounted else app
    rules = [
        Rule(name="post", limits="1/minute", match={"view": ""}, count_when={"status": 200}),
        Rule(name="all", limits="2/minute", count_when={"status": [200, 429]}),
    ]
    app.add_middleware(in_starlette.RateLimitMiddleware, limiter=limited(*rules), rejection=lambda *_: OWN)
    texts = [ask(app, "/in/" if is_mounted else "/").text for _ in range(3)]
    assert texts == ["ok", '{"error":"wait"}', "own"]


def identify_after(calls: list[Any], *errors: BaseException) -> Any:
    """Return an async function of features, whose first calls raise these errors."""

    async def identify(request: Any) -> dict[str, str]:
        calls.append(request)
        await asyncio.sleep(0)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return {"user": "ann"}

    return identify


def test_an_async_function_of_features_is_called_once() -> None:
    """Later checks have its result. Checks at the same time may each call it."""
    calls: list[Any] = []

    async def view(request: Any) -> PlainTextResponse:
        await asyncio.gather(*(check(request, name) for name in ("a", "b", "a")))
        before = len(calls)
        await check(request, "a")
        assert len(calls) == before
        return PlainTextResponse("ok")

    rules = [Rule(name=name, limits="9/minute", key=["user"], match={"view": ""}) for name in ("a", "b")]
    response = ask(application([Route("/", view)], *rules, features=identify_after(calls)))
    assert (response.status_code, response.headers["RateLimit"]) == (200, '"a";r=6;t=60, "b";r=8;t=60')


@each("error", [LookupError, asyncio.CancelledError])
def test_a_call_of_identify_that_fails_is_made_again(error: type[BaseException]) -> None:
    """The check after the failed one calls the function again."""
    calls: list[Any] = []

    async def view(request: Any) -> PlainTextResponse:
        with pytest.raises(error):
            await check(request, "mail")
        await check(request, "mail")
        return PlainTextResponse("ok")

    app = application([Route("/", view)], rule("9/minute", key=["user"]), features=identify_after(calls, error()))
    assert ask(app).text == "ok"
    assert len(calls) == 2


@each("call", [check, check.reset, in_starlette.usage])
def test_a_view_that_is_not_async_learns_that_check_is(call: Any) -> None:
    """Nothing would await the check, so it would limit nothing."""

    def view(request: Any) -> PlainTextResponse:
        with pytest.raises(ConfigError, match=r"is not async. Write async def, or call anyio.from_thread.run\("):
            call(request, "post")
        return PlainTextResponse("ok")

    assert ask(application([Route("/", view)], POST)).text == "ok"


def test_a_reset_without_a_feature_of_the_key_is_an_error() -> None:
    """Nobody is signed in, so there are no counts to reset."""

    async def view(request: Any) -> PlainTextResponse:
        with pytest.raises(ConfigError, match="the key of rule 'mail' needs"):
            await check.reset(request, "mail")
        return PlainTextResponse("ok")

    assert ask(application([Route("/", view)], rule("9/minute", key=["user"]))).text == "ok"


def test_a_view_that_is_not_async_checks_on_the_event_loop() -> None:
    """``anyio`` is the way that Starlette itself uses."""
    app = FastAPI()
    app.add_middleware(in_starlette.RateLimitMiddleware, limiter=Limiter([POST], clock=ManualClock(1_000_000.0)))

    @app.get("/")
    def view(request: Request) -> str:
        anyio.from_thread.run(check, request, "post")
        return "ok"

    assert [ask(app).status_code for _ in range(2)] == [200, 429]


def test_a_view_of_django_awaits_acheck_by_asgiref() -> None:
    """``async_to_sync`` warns of functions that are not async."""

    def view(request: Any) -> HttpResponse:
        async_to_sync(in_django.acheck)(request, "post")
        return HttpResponse("ok")

    source = {"limiter": Limiter([POST], clock=ManualClock(1_000_000.0))}
    with project(source, path("", view)) as served:
        assert [served.ask("/").status_code for _ in range(2)] == [200, 429]


# -- usage -----------------------------------------------------------------------------------------------------


def test_a_dependency_of_fastapi_is_the_usage() -> None:
    """The value may be returned as it is. It is that of the limit with the smallest share left."""
    app = FastAPI()
    rules = [Rule(name="both", limits=["10/minute", "15/hour"])]
    app.add_middleware(in_fastapi.RateLimitMiddleware, limiter=Limiter(rules, clock=ManualClock(1_000_000.0)))

    @app.get("/u")
    async def view(left: Annotated[dict[str, Any], Depends(in_fastapi.Usage("both"))]) -> Any:
        return left

    assert ask(app, "/u").json() == {"both": {"limit": 10, "remaining": 9, "reset_after": 60.0}}


def test_usage_without_names_shows_no_modules() -> None:
    """A rule without a name has the name of its view, as in the headers. Your code may use the whole name."""
    app = FastAPI()
    app.add_middleware(in_fastapi.RateLimitMiddleware, settings={})

    @app.get("/")
    @in_fastapi.limit("5/minute")
    async def view(request: Request) -> Any:
        whole = f"{__name__}.{view.__qualname__}"
        return [*await in_fastapi.usage(request, whole), *await in_fastapi.usage(request)]

    assert ask(app).json() == [f"{__name__}.{view.__qualname__}", "view"]
