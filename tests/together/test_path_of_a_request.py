"""The path of a request through the files of the package, so that a reader can follow it.

Each case lists the files that one warm call enters. A longer list needs a reason, not a larger number.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from calls import ask, ask_wsgi
from django.core.handlers.wsgi import WSGIHandler
from django.urls import path
from django_calls import hello, project
from fastapi import FastAPI
from flask import Flask
from redis_handles import PATIENT, address
from servers import Server

import ratelimit_mw
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimitMiddleware as ASGIMiddleware
from ratelimit_mw.fastapi import limit as asgi_limit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store

PACKAGE = Path(ratelimit_mw.__file__).parent
CLIENT = {"ip": "192.0.2.7"}
DECIDING = {
    "limiter/limiter.py",  # hit: the plan, its program, the verdict
    "rules/ruleset.py",  # finds the plan of a request
    "rules/plan.py",
    "limiter/programs.py",  # the hits of a plan, and one call for all
    "keys/key.py",  # the key of a rule
    "limiter/remote/store.py",  # who is asked
    "limiter/remote/cache.py",
    "decision/deciding.py",
}


@contextmanager
def record_files() -> Iterator[set[str]]:
    """Collect the files of this package whose functions are called within the block."""
    files: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            files.add(file.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield files
    finally:
        sys.setprofile(before)


def limiter_on(server: Server) -> Limiter:
    """Return a limiter that announces no process, which is due at a moment, and waits for a busy server."""
    store = open_store(address(server), PATIENT)
    return Limiter([Rule(name="path", limits="1000/hour")], store, settings=Settings(fleet_size=1))


def files_of_a_hit(server: Server) -> set[str]:
    limiter = limiter_on(server)
    with closing(limiter):
        for _ in range(3):
            limiter.hit(CLIENT)
        with record_files() as files:
            limiter.hit(CLIENT)
    return files


async def files_of_an_awaited_hit(server: Server) -> set[str]:
    limiter = limiter_on(server)
    for _ in range(3):
        await limiter.ahit(CLIENT)
    with record_files() as files:
        await limiter.ahit(CLIENT)
    await limiter.aclose()
    return files


def test_a_hit_on_redis_enters_at_most_14_files(redis_server: Server) -> None:
    """Eight files make the decision, four files of the Redis store call the server, and one has its time budget.

    One runs the coroutine that threads and event loops share. An awaited hit enters the batch of the store, too.
    """
    for files in (files_of_a_hit(redis_server), asyncio.run(files_of_an_awaited_hit(redis_server))):
        assert {file for file in files if not file.startswith(("stores/", "runtime/"))} == DECIDING
        assert len(files) <= 14, sorted(files)


def files_of(request: Callable[[], Any]) -> set[str]:
    """Return the files that a warm request enters."""
    for _ in range(3):
        assert request().status_code == 200
    with record_files() as files:
        assert request().status_code == 200
    return files


def test_a_rejection_in_fastapi_enters_at_most_14_files() -> None:
    """A rule and ``@limit``: the adapter finds the route, ``http`` reads and writes, the limiter decides."""
    app = FastAPI()
    app.add_middleware(ASGIMiddleware, limiter=Limiter([Rule(name="site", limits="30/hour")]))

    @app.get("/items/{item}")
    @asgi_limit("2/hour")
    async def show(item: int) -> int:
        return item

    assert [ask(app, "/items/7").status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    with record_files() as files:
        ask(app, "/items/7")
    assert {"asgi/middleware.py", "asgi/routes.py", "http/admission.py", "http/rejection.py"} <= files
    assert len(files) <= 14, sorted(files)


def test_a_request_to_flask_enters_at_most_13_files() -> None:
    """A rule and ``@limit``, allowed: the hooks decide, and the layer of WSGI writes the headers."""
    app = Flask("app")
    RateLimiter(app, limiter=Limiter([Rule(name="site", limits="30/hour")]))
    app.add_url_rule("/items/<item>", "show", flask_limit("20/hour")(lambda item: item))
    files = files_of(lambda: ask_wsgi(app, "/items/7"))
    assert {"flask/hooks.py", "wsgi/exchange.py", "http/admission.py", "http/headers.py"} <= files
    assert len(files) <= 13, sorted(files)


def test_a_request_to_django_enters_at_most_13_files() -> None:
    """A rule and ``@limit``, allowed: the middleware decides, with a request of its own."""
    settings = {"rules": [{"name": "site", "limits": "30/hour"}]}
    with project(settings, path("items", django_limit("20/hour")(hello))):
        app = WSGIHandler()
        files = files_of(lambda: ask_wsgi(app, "/items"))
    assert {"django/middleware.py", "django/request.py", "http/admission.py", "http/headers.py"} <= files
    assert len(files) <= 13, sorted(files)
