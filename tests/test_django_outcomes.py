"""What is settled when a request to Django is over: outcomes, costs, slots, delays; streams, by Django's handlers."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import pytest
from calls import CLIENT, aask, ask, ask_wsgi, http_scope
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django_calls import Project, hello, one_rule, project
from wsgi_calls import environ_of

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware as Around
from ratelimit_mw.django import limit, middleware
from ratelimit_mw.wsgi import RateLimitMiddleware as AroundWSGI

both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
FAILURES = {"count_when": {"status": [401, 500]}}


def test_twenty_failing_logins_at_once_let_three_through() -> None:
    """Only failures count, and as each request reserves its place first, no storm of threads gets past the limit."""
    inside = threading.Semaphore(0)

    @limit("3/minute", count_when={"status": 401})
    def login(request: Any) -> HttpResponse:
        inside.acquire()
        return HttpResponse(status=401)

    found: list[int] = []
    with project(None, path("", login)) as served:
        threads = [threading.Thread(target=lambda: found.extend(served.statuses(times=1))) for _ in range(20)]
        for thread in threads:
            thread.start()
        inside.release(20)
        for thread in threads:
            thread.join()
    assert sorted(found) == [401] * 3 + [429] * 17


def test_twenty_failing_logins_on_one_loop_let_three_through() -> None:
    """Nor does a storm of coroutines that are all under way before the first of them has failed."""

    async def scenario(served: Project) -> list[int]:
        arrived = asyncio.Barrier(3)

        @limit("3/minute", count_when={"status": 401})
        async def login(request: Any) -> HttpResponse:
            await arrived.wait()
            return HttpResponse(status=401)

        with project(None, path("", login), is_async=True) as served:
            answers = await asyncio.gather(*(served.aask() for _ in range(20)))
        return [answer.status_code for answer in answers]

    with project(is_async=True) as served:
        assert sorted(asyncio.run(scenario(served))) == [401] * 3 + [429] * 17


def answering(request: Any, status: int) -> HttpResponse:
    if status == 500:
        raise ZeroDivisionError
    return HttpResponse(status=status)


@both
def test_only_the_outcomes_named_count(is_async: bool) -> None:
    """What succeeds gives its reservation back, a failure keeps it, and an exception counts as 500."""
    with project(one_rule("2/minute", **FAILURES), path("<int:status>", answering), is_async=is_async) as served:
        asked = (200, 404, 200, 200, 401, 500, 200)
        assert [served.ask(f"/{status}").status_code for status in asked] == [200, 404, 200, 200, 401, 500, 429]


@both
def test_the_true_cost_is_stated_in_the_view(is_async: bool) -> None:
    """request.ratelimit.settle corrects what was spent once the request is over."""

    def view(request: Any, cost: int) -> HttpResponse:
        request.ratelimit.settle(cost)
        return HttpResponse()

    with project(one_rule("10/minute", cost=3), path("<int:cost>", view), is_async=is_async) as served:
        assert [served.ask(f"/{cost}")["x-ratelimit-remaining"] for cost in (0, 5, 1)] == ["7", "7", "2"]


def streaming(request: Any) -> StreamingHttpResponse:
    def chunks() -> Iterator[str]:
        yield "some "
        request.ratelimit.settle(6)
        yield "words"

    return StreamingHttpResponse(chunks())


async def astreaming(request: Any) -> StreamingHttpResponse:
    async def chunks() -> AsyncIterator[str]:
        yield "some "
        request.ratelimit.settle(6)
        yield "words"

    return StreamingHttpResponse(chunks())


def sending(request: Any) -> FileResponse:
    return FileResponse(io.BytesIO(b"some words"))


def by_wsgi() -> tuple[int, bytes]:
    answer = ask_wsgi(WSGIHandler())
    return answer.status_code, answer.content


def by_asgi() -> tuple[int, bytes]:
    answer = ask(ASGIHandler())
    return answer.status_code, answer.content


@pytest.mark.parametrize(("served", "view"), [(by_wsgi, streaming), (by_wsgi, sending), (by_asgi, astreaming)])
def test_a_stream_is_sent_as_it_is_and_settled_at_its_end(served: Any, view: Any) -> None:
    """Through Django's own handlers a stream arrives whole, with headers; a cost stated in it is settled."""
    limiter = one_rule("10/minute")
    with project(limiter, path("", view)):
        assert served() == (200, b"some words")
    spent = 1 if view is sending else 6
    assert limiter.peek({"ip": CLIENT}).decisions[0].remaining == 10 - spent - 1


def test_a_slot_is_held_while_the_response_streams() -> None:
    """Under WSGI a stream in flight takes its slot until it is closed, a file included."""

    def chunks() -> Iterator[str]:
        yield str(by_wsgi()[0])

    views = (path("", lambda request: StreamingHttpResponse(chunks())), path("file", sending))
    with project(one_rule("1 concurrent"), *views):
        assert by_wsgi() == (200, b"429")
        assert by_wsgi() == (200, b"429")
        handler = WSGIHandler()
        body = handler(environ_of(PATH_INFO="/file"), lambda *_: None)
        assert by_wsgi()[0] == 429
        body.close()
        assert by_wsgi()[0] == 200


def test_a_slot_is_held_while_an_async_response_streams() -> None:
    """Under ASGI, too."""

    async def view(request: Any) -> StreamingHttpResponse:
        async def chunks() -> AsyncIterator[str]:
            yield str((await aask(ASGIHandler())).status_code)

        return StreamingHttpResponse(chunks())

    with project(one_rule("1 concurrent"), path("", view)):
        assert by_asgi() == (200, b"429")
        assert by_asgi() == (200, b"429")


@pytest.mark.parametrize("when", ["view", "stream"])
def test_a_slot_comes_back_when_the_client_goes_away(when: str) -> None:
    """A client of ASGI that disconnects, while the view runs or in the middle of a stream, gives its slot back."""

    async def scenario() -> int:
        gone = asyncio.Event()

        async def chunks() -> AsyncIterator[str]:
            yield "a"
            gone.set()
            await asyncio.sleep(3600)

        async def view(request: Any) -> StreamingHttpResponse:
            if when == "view":
                gone.set()
                await asyncio.sleep(3600)
            return StreamingHttpResponse(chunks())

        waiting: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        with project(one_rule("1 concurrent"), path("", view), path("other", hello)):
            serving = asyncio.ensure_future(ASGIHandler()(http_scope(), receive, send))
            if django.VERSION < (5, 0):  # it does not listen for that; servers may cancel it
                await gone.wait()
                serving.cancel()
            await asyncio.wait([serving])
            return (await aask(ASGIHandler(), "/other")).status_code

    assert asyncio.run(scenario()) == 200


def failing(request: Any) -> StreamingHttpResponse:
    def chunks() -> Iterator[str]:
        yield "some "
        request.ratelimit.settle(3)
        raise ZeroDivisionError

    return StreamingHttpResponse(chunks())


async def afailing(request: Any) -> StreamingHttpResponse:
    async def chunks() -> AsyncIterator[str]:
        yield "some "
        request.ratelimit.settle(3)
        raise ZeroDivisionError

    return StreamingHttpResponse(chunks())


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume", "ignore::ResourceWarning")
@pytest.mark.parametrize("served", [by_asgi, by_wsgi])
@pytest.mark.parametrize("view", [failing, afailing])
def test_a_stream_that_fails_is_settled(served: Any, view: Any) -> None:
    """Django closes no response whose stream fails under ASGI; its slot comes back and its cost is settled anyway."""
    limiter = Limiter([Rule(name="api", limits="10/minute"), Rule(name="slots", limits="1 concurrent")])
    with project(limiter, path("", view)), pytest.raises(ZeroDivisionError):
        served()
    gc.collect()  # Django leaves the request's body open, too
    left = limiter.peek({"ip": CLIENT})
    assert (left.allowed, left.decisions[0].remaining) == (True, 10 - 3 - 1)


def test_a_stream_that_nobody_reads_is_settled_when_it_is_closed() -> None:
    """A client that asks for the headers alone leaves no slot taken."""
    with project(one_rule("1 concurrent"), path("", streaming)):
        body = WSGIHandler()(environ_of(), lambda *_: None)
        assert by_wsgi()[0] == 429
        body.close()
        assert by_wsgi()[0] == 200


@both
def test_a_slot_comes_back_when_the_view_is_done(is_async: bool) -> None:
    """A response that is whole gives its slot back at once, and so do errors and refusals of the application."""
    with project(one_rule("1 concurrent"), path("<int:status>", answering), is_async=is_async) as served:
        assert [served.ask(f"/{status}").status_code for status in (200, 500, 403, 200)] == [200, 500, 403, 200]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_that_goes_up_settles_too(error: type[BaseException], is_async: bool) -> None:
    """Where errors are handed on they count as 500; told to stop, nobody knows, and the reservation is kept."""
    limiter = one_rule(["1/minute", "1 concurrent"], count_when={"status": 401})

    def fail(request: Any) -> None:
        raise error

    async def afail(request: Any) -> None:
        raise error

    with project(limiter):
        if is_async:
            request: Any = AsyncRequestFactory().get("/")
            with pytest.raises(error):
                asyncio.run(caught(middleware.RateLimitMiddleware(afail), request))
        else:
            with pytest.raises(error):
                middleware.RateLimitMiddleware(fail)(RequestFactory().get("/"))
    after = limiter.peek({"ip": "127.0.0.1"})
    assert [decision.allowed for decision in after.decisions] == [error is ZeroDivisionError, True]


async def caught(serve: Any, request: Any) -> None:
    """As a task that ends by an error of the process would not end the loop of the test."""
    await serve(request)


@both
def test_a_queue_makes_requests_wait_their_turn(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a leaky-bucket queue a request waits until those before it have gone, and a full one refuses."""
    slept: list[float] = []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(middleware.time, "sleep", slept.append)
    monkeypatch.setattr(middleware.asyncio, "sleep", asleep)
    limiter = one_rule("10/s burst 3", algorithm={"name": "leaky-bucket", "mode": "queue"})
    with project(limiter, is_async=is_async) as served:
        assert served.statuses(times=4) == [200, 200, 200, 429]
    assert slept == [0.1, 0.2]


def test_cancelled_while_it_waits_its_slot_comes_back() -> None:
    """A request that is cancelled in a queue holds no slot any longer."""
    rules = Limiter(
        [
            Rule(name="queue", limits="1/minute burst 2", algorithm={"name": "leaky-bucket", "mode": "queue"}, key=[]),
            Rule(name="slots", limits="2 concurrent", key=[]),
        ]
    )

    async def scenario() -> None:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("around", [Around, AroundWSGI])
def test_middleware_around_django_decides_once(around: Any) -> None:
    """What the ASGI or WSGI middleware has decided is not decided again inside; decorators still are."""
    limiter = one_rule("3/minute")
    view = limit("1/minute", name="view")(lambda request: HttpResponse(str(request.ratelimit.rules)))
    with project(limiter, path("", view), path("free", hello)):
        handler: Any = ASGIHandler() if around is Around else WSGIHandler()
        app = around(handler, limiter=limiter)
        call = ask if around is Around else ask_wsgi
        assert call(app, "/free").headers["x-ratelimit-remaining"] == "2"
        first, second = call(app), call(app)
    assert (first.status_code, first.text, second.status_code) == (200, "('view',)", 429)
