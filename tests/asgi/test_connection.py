"""Requests that wait for a slot under ASGI: the client may leave, and the application receives what it has sent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from calls import BODY, START, http_scope, on_loop
from limiter_ways import waiting
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware

WHO = {"ip": "192.0.2.7"}
LAST = {"type": "http.request", "body": b"last", "more_body": False}
LEFT = {"type": "http.disconnect"}


class Scene:
    """An application with one slot, which is taken. ``sends`` has the messages of the client, an error is raised."""

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
        message = await self.sends.get()
        if isinstance(message, Exception):
            raise message
        return message

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


def test_a_request_whose_client_leaves_ends() -> None:
    """The application does not run, and no slot is taken. Other middleware gets an empty response of no use."""

    async def scenario(*messages: Any, **scope: Any) -> None:
        scene, is_request = Scene(), "type" not in scope
        request = scene.start(*messages, **scope)
        await turn_until(lambda: scene.is_waiting)
        scene.sends.put_nowait({"type": f"{scope.get('type', 'http')}.disconnect"})
        await request
        assert (scene.received, scene.is_waiting) == ([], False)
        assert [message.get("status") for message in scene.sent] == [499, None] * is_request
        scene.free()
        assert scene.limiter.peek(WHO, cost=0).decisions[0].remaining == 1

    asyncio.run(scenario())
    asyncio.run(scenario(LAST))
    asyncio.run(scenario({**LAST, "more_body": True}))
    asyncio.run(scenario({"type": "websocket.connect"}, type="websocket"))


@on_loop
async def test_the_application_receives_what_was_read_meanwhile() -> None:
    """All messages in their order, and later the end of the connection."""
    scene = Scene()
    first = {"type": "http.request", "body": b"first", "more_body": True}
    request = scene.start(first)
    await turn_until(lambda: scene.is_waiting and scene.sends.empty())
    scene.free()
    await turn_until(lambda: scene.received)
    scene.sends.put_nowait(LAST)
    scene.sends.put_nowait(LEFT)
    await request
    assert scene.received == [first, LAST, LEFT]
    assert [message["type"] for message in scene.sent] == ["http.response.start", "http.response.body"]


@on_loop
async def test_a_websocket_connects_after_its_wait() -> None:
    """The application receives the first message."""
    scene = Scene()
    request = scene.start({"type": "websocket.connect"}, type="websocket")
    await turn_until(lambda: scene.is_waiting)
    scene.free()
    await request
    assert scene.received == [{"type": "websocket.connect"}]


@each("count", [1, 64])
@on_loop
async def test_a_long_body_is_not_kept(count: int) -> None:
    """The middleware then stops to read. It does not notice that the client leaves."""
    part = {"type": "http.request", "body": b"x" * (2000 if count == 1 else 1), "more_body": True}
    scene = Scene(body_limit="1KiB")
    request = scene.start(*[part] * count, LAST, LEFT)
    await turn_until(lambda: scene.is_waiting and scene.sends.qsize() == 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.sends.qsize() == 2
    assert not request.done()
    scene.free()
    await request
    assert len(scene.received) == count + 2


@on_loop
async def test_an_error_of_the_server_is_left_to_the_application() -> None:
    """The wait continues."""
    scene = Scene()
    request = scene.start(OSError("broken"))
    await turn_until(lambda: scene.is_waiting and scene.sends.empty())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not request.done()
    scene.free()
    with pytest.raises(OSError, match="broken"):
        await request


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
async def test_an_own_timeout_of_a_feature_is_an_error() -> None:
    """It does not mean that the client has left."""

    async def user(request: Any) -> str:
        raise TimeoutError("slow")

    limiter = Limiter([Rule(name="jobs", key=["user"], limits="1 concurrent", wait=3600)])
    scene = Scene()
    scene.limited = RateLimitMiddleware(scene.app, limiter=limiter, features={"user": user})
    with pytest.raises(TimeoutError, match="slow"):
        await scene.start(LAST)


@on_loop
async def test_a_request_that_is_cancelled_stops_to_read() -> None:
    """As a server cancels it that stops."""
    scene = Scene()
    request = scene.start(LAST)
    await turn_until(lambda: scene.is_waiting)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert not scene.is_waiting
    await turn_until(lambda: len(asyncio.all_tasks()) == 1)
