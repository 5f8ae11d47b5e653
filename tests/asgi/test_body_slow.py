"""Bodies under ASGI that arrive slowly, or whose request is cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from asgi_checker import Message, Receive, Scope, Send
from body_clients import DISCONNECT, LIMIT, Client, Reader, chunks, post, remaining, with_middleware
from calls import BODY, START, on_loop, sending

from ratelimit_mw.asgi.body import ReadAhead
from ratelimit_mw.asgi.middleware import RateLimitMiddleware
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.keys.features import INVALID


def run_with_slow_body(
    run: Callable[[Client, RateLimitMiddleware, Reader], Any], *messages: Any, beyond: int = 0
) -> Client:
    """Run ``run`` with a body whose end does not arrive in time."""

    async def story() -> Client:
        client, app = Client(*messages), Reader(beyond)
        await run(client, with_middleware(app, body_timeout="10ms"), app)
        await asyncio.sleep(0)
        return client

    return asyncio.run(story())


def test_a_slow_body_times_out_and_still_arrives_whole() -> None:
    """The body counts as invalid. The application receives the pending message, which is requested once."""
    first, last = chunks(b'{"user":', b'"ann"}')

    async def run(client: Client, limited_app: RateLimitMiddleware, app: Reader) -> None:
        call = asyncio.ensure_future(limited_app(post(), client.receive, client.send))
        while not app.received:  # the middleware waits no longer
            await asyncio.sleep(0.001)
        client.go_on()
        await call
        assert [message is sent for message, sent in zip(app.received, (first, last), strict=True)] == [True, True]
        assert [remaining(limited_app.limiter, user) for user in ("ann", INVALID)] == [1, 0]

    client = run_with_slow_body(run, first, None, last)
    assert (client.status, client.receive_calls, client.cancelled) == (200, 2, 0)


def test_a_cancelled_read_of_the_application_loses_no_message() -> None:
    """After a timeout of its own read, the application receives each message exactly once."""
    first, last = chunks(b"{", b"}")
    received: list[Message] = []

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receive(), 0.001)
        client.go_on()
        received.append(await receive())
        received.append(await receive())
        await sending(START, BODY)(scope, receive, send)

    async def run() -> None:
        await with_middleware(impatient, body_timeout="10ms")(post(), client.receive, client.send)

    client = Client(first, None, last, DISCONNECT)
    asyncio.run(run())
    assert received == [first, last, DISCONNECT]
    assert (client.receive_calls, client.cancelled) == (3, 0)


def test_two_readers_never_receive_the_same_message() -> None:
    """A response may stream while it listens for a disconnect. Each message goes to one reader."""
    first, last = chunks(b"{", b"}")
    received: list[Message] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        tasks = [asyncio.create_task(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        client.go_on()
        received.extend(await asyncio.gather(*tasks))
        await sending(START, BODY)(scope, receive, send)

    async def run() -> None:
        await with_middleware(listening, body_timeout="10ms")(post(), client.receive, client.send)

    client = Client(first, None, last, DISCONNECT)
    asyncio.run(run())
    assert sorted(map(repr, received)) == sorted(map(repr, [first, last, DISCONNECT]))


@on_loop
async def test_an_unused_read_is_cancelled() -> None:
    """An application that responds without reading leaves no task behind, whether it returns or raises."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    for app in (sending(START, BODY), failing):
        client = Client(*chunks(b"{", more=True), None, OSError("too late"))
        limited_app = with_middleware(app, body_timeout="10ms")
        with pytest.raises(ValueError, match="broken") if app is failing else pytest.MonkeyPatch.context():
            await limited_app(post(), client.receive, client.send)
        await asyncio.sleep(0)
        assert client.cancelled == 1
    stubborn = Stubborn(*chunks(b"{", more=True), None)
    await with_middleware(sending(START, BODY), body_timeout="10ms")(post(), stubborn.receive, stubborn.send)
    await asyncio.sleep(0)
    assert stubborn.cancelled == 1
    gc.collect()
    assert reported == []
    assert len(asyncio.all_tasks()) == 1


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("broken")


class Stubborn(Client):
    """A server that turns a cancelled read into an error of its own."""

    async def receive(self) -> Message:
        try:
            return await super().receive()
        except asyncio.CancelledError:
            raise OSError("cancelled") from None


@on_loop
async def test_a_request_cancelled_during_its_body_leaves_no_task() -> None:
    """When the server cancels the request, the read of the body ends, too."""
    client = Client(*chunks(b"{", more=True), None)
    request = asyncio.create_task(with_middleware(Reader())(post(), client.receive, client.send))
    while client.receive_calls < 2:
        await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.sleep(0)
    assert (client.cancelled, client.sent) == (1, [])


def test_a_dripping_body_has_one_timeout() -> None:
    """The timeout covers the whole body, not each message, so slow drips do not keep the body open."""

    async def run() -> tuple[int, object]:
        reads = 0

        async def receive() -> Message:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.002)
            return {"type": "http.request", "body": b" ", "more_body": True}

        ahead = ReadAhead(receive, LIMIT, 20_000)
        value = await ahead.read(ASGIRequest(post()))
        ahead.close()
        return reads, value

    reads, value = asyncio.run(run())
    assert value is INVALID
    assert 1 <= reads <= 11
