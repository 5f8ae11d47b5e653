"""Waits for slots: the same on every store."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import django
import memcached_handles
import pytest
import redis_handles
from calls import http_scope
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from django.urls import path
from django_calls import project
from limiter_ways import waiting
from servers import Server, wait_for

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store

ANN = {"user": "ann"}


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
            wait_for(partial(waiting, limiter), "the request to wait")
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
            while waiting(limiter) < len(jobs):
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
        while not waiting(limiter):
            await asyncio.sleep(0.001)
        incoming.put_nowait({"type": "http.disconnect"})
        await request
        assert (sent, waiting(limiter)) == ([], 0)
        await limiter.arefund(taken)
        assert (await limiter.apeek({}, cost=0)).decisions[0].remaining == 1

    with project(limiter, view):
        asyncio.run(scenario())
