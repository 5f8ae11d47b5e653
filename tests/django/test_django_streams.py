"""Streaming responses through Django's own handlers settle slots and costs, even on disconnects and errors."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import pytest
from calls import CLIENT, aask, ask, ask_wsgi, http_scope
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, StreamingHttpResponse
from django.urls import path
from django_calls import hello, one_rule, project
from tables import each
from wsgi_calls import environ_of


@pytest.fixture
def closed_bodies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the bodies of requests that Django leaves open. Their warnings would fail any later test."""
    bodies: list[Any] = []
    read_body = ASGIHandler.read_body

    async def read(self: Any, receive: Any) -> Any:
        bodies.append(await read_body(self, receive))
        return bodies[-1]

    monkeypatch.setattr(ASGIHandler, "read_body", read)
    yield
    for body in bodies:
        body.close()


def client_until(gone: asyncio.Event) -> Any:
    """Return the ``receive`` of a client that sends an empty body, and later disconnects."""
    waiting: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


async def ignore(message: Any) -> None:
    pass


def sending(request: Any) -> FileResponse:
    return FileResponse(io.BytesIO(b"some words"))


def by_wsgi() -> tuple[int, bytes]:
    response = ask_wsgi(WSGIHandler())
    return response.status_code, response.content


def by_asgi() -> tuple[int, bytes]:
    response = ask(ASGIHandler())
    return response.status_code, response.content


def test_a_file_holds_its_slot_until_it_is_closed() -> None:
    """It arrives whole, or it is closed unread."""
    with project(one_rule("1 concurrent"), path("", sending)):
        assert by_wsgi() == (200, b"some words")
        body = WSGIHandler()(environ_of(), lambda *_: None)
        assert by_wsgi()[0] == 429
        body.close()
        assert by_wsgi()[0] == 200


async def disconnect(gone: asyncio.Event) -> None:
    """Send a request, and disconnect when the event is set."""
    serving = asyncio.ensure_future(ASGIHandler()(http_scope(), client_until(gone), ignore))
    if django.VERSION < (5, 0):  # it does not listen for a disconnect; servers may cancel it
        await gone.wait()
        serving.cancel()
    await asyncio.wait([serving])
    gc.collect()


@pytest.mark.usefixtures("closed_bodies")
@each("when", ["view", "stream"])
def test_a_disconnect_is_settled(when: str) -> None:
    """A client that disconnects during the view or the stream releases its slot, and pays what the stream states."""

    async def scenario() -> None:
        gone = asyncio.Event()

        async def chunks(request: Any) -> AsyncIterator[str]:
            try:
                yield "a"
                gone.set()
                await asyncio.sleep(3600)
            finally:
                request.ratelimit.settle(4)

        async def view(request: Any) -> StreamingHttpResponse:
            if when == "view":
                gone.set()
                await asyncio.sleep(3600)
            return StreamingHttpResponse(chunks(request))

        with project(limiter, path("", view), path("other", hello)):
            await disconnect(gone)
            assert (await aask(ASGIHandler(), "/other")).status_code == 200

    limiter = one_rule(["10/minute", "1 concurrent"])
    asyncio.run(scenario())
    assert limiter.peek({"ip": CLIENT}).decisions[0].remaining == 10 - (4 if when == "stream" else 1) - 2


@pytest.mark.usefixtures("closed_bodies")
def test_a_stream_that_never_starts_releases_its_slot() -> None:
    """When the server cannot send the headers, Django drops the response. Its garbage collection releases the slot."""

    async def words() -> AsyncIterator[str]:
        yield "word"

    async def send(message: Any) -> None:
        raise ConnectionResetError

    async def scenario() -> None:
        with project(limiter, path("", lambda request: StreamingHttpResponse(words()))):
            with pytest.raises(ConnectionResetError):
                await ASGIHandler()(http_scope(), client_until(asyncio.Event()), send)
            gc.collect()
            while not limiter.peek({"ip": CLIENT}):
                await asyncio.sleep(0)

    limiter = one_rule("1 concurrent")
    asyncio.run(scenario())


def test_a_stream_may_be_any_async_iterable() -> None:
    """An iterable without a close method is sent and settled as well."""

    class Words:
        left = 2

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return "word "

    async def view(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(Words())

    with project(one_rule("1 concurrent"), path("", view)):
        assert [by_asgi() for _ in range(2)] == [(200, b"word word ")] * 2
