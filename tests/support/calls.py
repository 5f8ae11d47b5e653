"""Small applications behind the middleware, and clients that call them through httpx or with raw messages."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import httpx
from asgi_checker import App, Message, Receive, Scope, Send, checked

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

URL = "http://testserver"
CLIENT = "192.0.2.7"

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
BODY: Message = {"type": "http.response.body", "body": b"hello"}
FIELDS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit"]


def limiter(limits: Any = "2/minute", **rule: Any) -> Limiter:
    return Limiter([Rule(name="api", limits=limits, **rule)], clock=ManualClock(1_000_000.0))


def limited(app: App, rate: Limiter | None = None, **options: Any) -> App:
    """Return the application behind the middleware, with both sides checked."""
    rate = rate or limiter()
    return checked(lambda inner: RateLimitMiddleware(inner, limiter=rate, **options), app)


def sending(*messages: Message) -> App:
    """Return an application that sends these messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


def names_of(start: Message) -> list[str]:
    return [name.decode() for name, _ in start["headers"]]


def ask(app: App, path: str = "/", method: str = "GET", client: str = CLIENT, **request: Any) -> httpx.Response:
    """Send one request to an ASGI application."""
    return asyncio.run(aask(app, path, method, client, **request))


async def aask(app: App, path: str = "/", method: str = "GET", client: str = CLIENT, **request: Any) -> httpx.Response:
    """Call ``ask`` on a running event loop."""
    transport = httpx.ASGITransport(app=app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as session:
        return await session.request(method, path, **request)


def ask_wsgi(app: Any, path: str = "/", method: str = "GET", client: str = CLIENT, **request: Any) -> httpx.Response:
    """Send one request to a WSGI application."""
    transport = httpx.WSGITransport(app=app, remote_addr=client)
    with httpx.Client(transport=transport, base_url=URL) as session:
        return session.request(method, path, **request)


def http_scope(**changed: Any) -> Scope:
    """Return the scope of ``GET /``."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"testserver")],
        "client": (CLIENT, 1234),
        "server": ("testserver", 80),
    }
    return {**scope, **changed}


def send_bare(app: App, scope: Scope, incoming: list[Message] | None = None) -> list[Message]:
    """Make one call with raw messages and return the messages of the application."""
    return asyncio.run(asend_bare(app, scope, incoming))


async def asend_bare(app: App, scope: Scope, incoming: list[Message] | None = None) -> list[Message]:
    """Call ``send_bare`` on a running event loop."""
    waiting = list(incoming or [{"type": "http.request", "body": b"", "more_body": False}])
    sent: list[Message] = []

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


OK = sending(START, BODY)


def statuses(app: App, times: int, **request: Any) -> list[int]:
    return [ask(app, **request).status_code for _ in range(times)]


def at_once(times: int, call: Callable[[], list[int]], inside: threading.Semaphore) -> list[int]:
    """Call in as many threads, let those that wait in the view continue, and return the sorted statuses."""
    with ThreadPoolExecutor(times) as pool:
        calls = [pool.submit(call) for _ in range(times)]
        inside.release(times)
        return sorted(status for each in calls for status in each.result())
