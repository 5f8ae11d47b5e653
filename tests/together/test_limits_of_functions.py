"""Limits from functions and waits for slots: the same in every framework and on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import django
import memcached_handles
import pytest
import redis_handles
from calls import OK, ask, ask_wsgi, http_scope
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from django_calls import still as django_still
from fastapi import Depends, FastAPI
from flask import Flask
from flask_calls import ask as ask_flask
from servers import Server, wait_for

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.stores import open_store
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

ANN = {"user": "ann"}


def limits_of(ip: str) -> str:
    return "2/minute" if ip != "unknown" else "5/minute"


async def alimits_of(ip: str) -> str:
    await asyncio.sleep(0)
    return limits_of(ip)


def failing(ip: str) -> str:
    raise KeyError(ip)


def in_asgi(function: Any) -> Iterator[Any]:
    app = RateLimitMiddleware(OK, limiter=Limiter([Rule(limits=function)]))
    yield from (ask(app) for _ in range(3))


def in_wsgi(function: Any) -> Iterator[Any]:
    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b""]

    limited = WSGIMiddleware(app, limiter=Limiter([Rule(limits=function)]))
    yield from (ask_wsgi(limited) for _ in range(3))


def in_fastapi(function: Any) -> Iterator[Any]:
    app = FastAPI()
    app.get("/", dependencies=[Depends(RateLimit(function))])(lambda: "42")
    app.add_middleware(RateLimitMiddleware, limiter=Limiter())
    yield from (ask(app) for _ in range(3))


def in_flask(function: Any) -> Iterator[Any]:
    app = Flask("app")
    app.add_url_rule("/", view_func=limit(function, key=["ip"])(lambda: "42"))
    RateLimiter(app)
    yield from (ask_flask(app) for _ in range(3))


def in_django(function: Any) -> Iterator[Any]:
    view = limit(function, key=["ip"])(lambda request: HttpResponse("42"))
    with project(django_still(), path("", view)) as served:
        yield from (served.ask() for _ in range(3))


FRAMEWORKS = [in_asgi, in_wsgi, in_fastapi, in_flask, in_django]


@pytest.mark.parametrize("function", [limits_of, alimits_of])
@pytest.mark.parametrize("responses_of", FRAMEWORKS)
def test_functions_limit_requests(responses_of: Callable[[Any], Iterator[Any]], function: Any) -> None:
    """Sync and async, in blocking and async applications."""
    responses = list(responses_of(function))
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.headers["x-ratelimit-limit"] for response in responses] == ["2"] * 3


@pytest.mark.parametrize("responses_of", FRAMEWORKS)
def test_a_function_that_fails_rejects_requests(responses_of: Callable[[Any], Iterator[Any]]) -> None:
    """The limit does not go missing, and the client learns that the server is at fault."""
    for response in responses_of(failing):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


@pytest.fixture(params=["redis", "lmdb", "memcached"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/limits?size=16MiB"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return {"redis": redis_handles, "memcached": memcached_handles}[request.param].address(server)


def on(url: str, name: str, **options: Any) -> Limiter:
    return Limiter([Rule(name=name, key=["user"], wait=3600, **options)], open_store(url, redis_handles.PATIENT))


def test_slots_are_waited_for_on_every_store(url: str, request: pytest.FixtureRequest) -> None:
    """Threads and tasks, of one limiter and of two."""
    name = request.node.name
    here, there = on(url, name, limits=lambda user: "1 concurrent"), on(url, name, limits="1 concurrent")
    for limiter in (here, there):
        verdict = there.hit(ANN)
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(limiter.hit, ANN)
            wait_for(limiter._queues._queues.__len__, "the request to wait")
            there.conclude(verdict, 200)
            limiter.conclude(job.result(), 200)
            assert job.result()
    asyncio.run(in_tasks(there))
    here.close()
    there.close()


async def in_tasks(limiter: Limiter) -> None:
    served: list[int] = []

    async def job(number: int) -> None:
        async with limiter.slot(ANN):
            served.append(number)

    async with limiter.slot(ANN):
        jobs = []
        for number in range(3):
            jobs.append(asyncio.ensure_future(job(number)))
            while sum(map(len, limiter._queues._queues.values())) < len(jobs):
                await asyncio.sleep(0.001)
    await asyncio.gather(*jobs)
    assert served == [0, 1, 2]
    await limiter.aclose()


@pytest.mark.skipif(django.VERSION < (5, 0), reason="the handler cancels requests since Django 5.0")
def test_django_ends_the_wait_of_a_client_that_leaves() -> None:
    """Its ASGI handler cancels the request."""
    rule = Rule(name="jobs", key=[], limits="1 concurrent", wait=3600)
    limiter = Limiter([rule])
    view = path("", lambda request: HttpResponse("42"))

    async def scenario() -> None:
        app, sent, incoming = ASGIHandler(), [], asyncio.Queue[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        taken = await limiter.ahit({})
        incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        request = asyncio.ensure_future(app(http_scope(), incoming.get, send))
        while not limiter._queues._queues:
            await asyncio.sleep(0.001)
        incoming.put_nowait({"type": "http.disconnect"})
        await request
        assert (sent, limiter._queues._queues) == ([], {})
        await limiter.arefund(taken)
        assert (await limiter.apeek({}, cost=0)).decisions[0].remaining == 1

    with project(limiter, view):
        asyncio.run(scenario())
