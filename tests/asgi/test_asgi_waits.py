"""Requests that wait for a slot under ASGI. The application then receives what the client has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from calls import BODY, START, http_scope, on_loop
from limiter_ways import waiting
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware

WHO = {"ip": "192.0.2.7"}
LAST = {"type": "http.request", "body": b"last", "more_body": False}
LEFT = {"type": "http.disconnect"}


class Scene:
    """An application with one slot, which is taken. ``sends`` has the messages of the client."""

    def __init__(self, **options: Any) -> None:
        self.limiter = Limiter([Rule(name="jobs", limits="1 concurrent", wait=3600)])
        self.limited = RateLimitMiddleware(self.app, limiter=self.limiter, **options)
        self.taken = self.limiter.hit(WHO)
        self.sends: asyncio.Queue[Any] = asyncio.Queue()
        self.received: list[Any] = []
        self.sent: list[Any] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        while not self.received or self.received[-1].get("more_body"):
            self.received.append(await receive())
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        await send(START)
        await send(BODY)
        self.received.append(await receive())

    def start(self, *messages: Any, **scope: Any) -> asyncio.Future[None]:
        for message in messages:
            self.sends.put_nowait(message)
        request = http_scope(client=("192.0.2.7", 1), **scope)
        return asyncio.ensure_future(self.limited(request, self._receive, self._send))

    async def _receive(self) -> Any:
        return await self.sends.get()

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def is_waiting(self) -> bool:
        return waiting(self.limiter) > 0

    def free(self) -> None:
        self.limiter.refund(self.taken)


async def turn_until(condition: Callable[[], object]) -> None:
    """Let the other tasks run until the condition is true."""
    while not condition():
        await asyncio.sleep(0)


@each(("kind", "messages"), [("http", [LAST, LEFT]), ("websocket", [{"type": "websocket.connect"}])])
@on_loop
async def test_the_application_receives_all_messages_after_the_wait(kind: str, messages: list[Any]) -> None:
    """A request whose client leaves keeps its place, and the application learns it as without limits."""
    scene = Scene()
    request = scene.start(*messages, type=kind)
    await turn_until(lambda: scene.is_waiting)
    scene.free()
    await request
    assert scene.received == messages


@on_loop
async def test_a_body_that_a_rule_needs_is_read_once() -> None:
    """The same messages are kept for the wait."""
    scene = Scene()
    rule = Rule(name="form", key=["json:name"], limits="1 concurrent", wait=3600)
    scene.limiter = Limiter([rule])
    scene.limited = RateLimitMiddleware(scene.app, limiter=scene.limiter)
    scene.taken = scene.limiter.hit({"json:name": "ann"})
    body = {"type": "http.request", "body": b'{"name": "ann"}', "more_body": False}
    headers = [(b"content-type", b"application/json"), (b"content-length", b"15")]
    request = scene.start(body, method="POST", headers=headers)
    await turn_until(lambda: scene.is_waiting)
    scene.free()
    scene.sends.put_nowait(LEFT)
    await request
    assert scene.received == [body, LEFT]


@on_loop
async def test_a_request_that_is_cancelled_waits_no_longer() -> None:
    """As a server cancels it that stops."""
    scene = Scene()
    request = scene.start(LAST)
    await turn_until(lambda: scene.is_waiting)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert not scene.is_waiting
    await turn_until(lambda: len(asyncio.all_tasks()) == 1)
