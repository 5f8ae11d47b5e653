"""Django requests settle outcomes, costs, slots and delays at their end."""

import asyncio
import gc
import io
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import pytest
from calls import aask, ask, ask_wsgi, http_scope, on_loop
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django_calls import CLIENT, MIDDLEWARE, hello, one_rule, project
from shared_store import SharedStore
from tables import each
from wsgi_calls import environ_of

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django import middleware

both = each("is_async", [False, True])


@each("is_async", [False, True])
@each("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_an_error_that_reaches_the_server_is_settled(error: type[BaseException], is_async: bool) -> None:
    """An error that Django hands on counts as 500. After a shutdown or a disconnect the cost is kept."""
    limiter = one_rule(["1/minute", "1 concurrent"], count_when={"status": 401})

    def fail(request: Any) -> None:
        raise error

    async def afail(request: Any) -> None:
        raise error

    def serve() -> None:
        if is_async:
            asyncio.run(catch(middleware.RateLimitMiddleware(afail), AsyncRequestFactory().get("/")))
        else:
            middleware.RateLimitMiddleware(fail)(RequestFactory().get("/"))

    with project(limiter), pytest.raises(error):
        serve()
    verdict = limiter.peek({"ip": "127.0.0.1"})
    assert [decision.allowed for decision in verdict.decisions] == [error is ZeroDivisionError, True]


async def catch(serve: Any, request: Any) -> None:
    """Catch the error in the task, because it would end the event loop of the test."""
    await serve(request)


@on_loop
async def test_a_request_cancelled_in_the_queue_releases_its_slot() -> None:
    rules = Limiter(
        [
            Rule(name="queue", limits="1/minute burst 2", algorithm={"name": "leaky-bucket", "mode": "queue"}, key=[]),
            Rule(name="slots", limits="2 concurrent", key=[]),
        ]
    )

    with project(rules, is_async=True) as served:
        await served.aask()
        waiting = asyncio.ensure_future(served.aask())
        while rules.peek({}):
            await asyncio.sleep(0)
        assert rules.peek({}).decisions[1].remaining == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert rules.peek({}).decisions[1].remaining == 2


def failing_middleware(where: str) -> Any:
    """Build a middleware that fails before the view, after the view, or in process_view."""

    def fail_at(place: str) -> None:
        if place == where:
            raise ZeroDivisionError

    class Breaking(MiddlewareMixin):
        def process_request(self, request: Any) -> None:
            fail_at("before")

        def process_view(self, request: Any, *_: Any) -> None:
            fail_at("view")

        def process_response(self, request: Any, response: Any) -> Any:
            fail_at("after")
            return response

    return Breaking


@both
@each("where", ["before", "view", "after"])
def test_a_failing_inner_middleware_is_settled(where: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error anywhere inside counts as 500 and releases the slot."""
    monkeypatch.setattr("django_calls.breaking", failing_middleware(where), raising=False)
    limiter = one_rule("2/minute; 1 concurrent", count_when={"status": 500})
    listed = [*MIDDLEWARE, "django_calls.breaking"]
    with project(limiter, is_async=is_async, middleware=listed) as served:
        assert served.statuses() == [500, 500, 429]
    assert limiter.peek({"ip": CLIENT}).decisions[1].allowed


@both
def test_a_response_of_an_inner_middleware_counts(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that never reaches a view counts, too."""

    def respond_early(get_response: Any) -> Any:
        return lambda request: HttpResponse("cached")

    monkeypatch.setattr("django_calls.answering", respond_early, raising=False)
    with project(one_rule(), is_async=is_async, middleware=[*MIDDLEWARE, "django_calls.answering"]) as served:
        assert served.statuses() == [200, 200, 429]


def test_a_request_cancelled_during_settlement_is_settled() -> None:
    """A request that is cancelled while the store settles its outcome keeps no slot."""

    class Slow(SharedStore):
        async def acorrect(self, *arguments: Any) -> list[int]:
            arrived.set()
            await goes_on.wait()
            return await super().acorrect(*arguments)

    async def scenario() -> None:
        with project(limiter, is_async=True) as served:
            serving = asyncio.ensure_future(served.aask())
            await arrived.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert not limiter.peek({"ip": CLIENT})
            goes_on.set()
            while not limiter.peek({"ip": CLIENT}):
                await asyncio.sleep(0)

    arrived, goes_on = asyncio.Event(), asyncio.Event()
    limiter = Limiter([Rule(name="slots", limits="1 concurrent")], Slow())
    asyncio.run(scenario())


# -- streaming responses through Django's own handlers ---------------------------------------------------------


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
                request.ratelimit["api"].settle(4)

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
def test_a_view_in_a_thread_holds_its_slot_when_its_client_has_left() -> None:
    """Django cancels the request, but the view continues. A client that leaves and returns would run any number.

    Middleware with a timeout outside, and a server that stops, cancel it once more.
    """
    may_end = threading.Event()

    async def scenario() -> None:
        gone, loop = asyncio.Event(), asyncio.get_running_loop()

        def view(request: Any) -> HttpResponse:
            loop.call_soon_threadsafe(gone.set)
            assert may_end.wait(9)
            return hello(request)

        with project(limiter, path("", view)):
            serving = asyncio.ensure_future(disconnect(gone))
            await gone.wait()
            await asyncio.wait([serving], timeout=0.1)
            for request in (task for task in asyncio.all_tasks() if "process_request" in repr(task)):
                request.cancel()
            await asyncio.wait([serving], timeout=0.1)
            assert not limiter.peek({"ip": CLIENT})
            may_end.set()
            await serving
            while not limiter.peek({"ip": CLIENT}):
                await asyncio.sleep(0.01)

    limiter = one_rule("1 concurrent")
    asyncio.run(scenario())


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


@pytest.mark.usefixtures("closed_bodies")
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@each(("serve", "charged"), [(by_wsgi, 1), (by_asgi, 0)])
def test_a_stream_that_fails_at_once_is_an_error_where_nothing_is_sent(serve: Any, charged: int) -> None:
    limiter = one_rule(["5/minute", "1 concurrent"], count_when={"status": 500})
    view = path("", lambda request: StreamingHttpResponse(map(int, "a")))
    with project(limiter, view), pytest.raises(ValueError, match="invalid literal"):
        serve()
    assert limiter.peek({"ip": CLIENT}, cost=0).decisions[0].remaining == 5 - charged


def test_a_stream_may_be_any_async_iterable() -> None:
    """An iterable without a close method is sent and settled as well. An outcome is settled before it is read."""

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
    with project(one_rule("1/minute", count_when={"status": 401}), path("", view), is_async=True) as served:
        assert served.statuses(times=2) == [200, 200]
