"""What is settled when a request to Django is over: outcomes, costs, slots, delays."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from calls import ask, ask_wsgi
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django_calls import CLIENT, MIDDLEWARE, Project, hello, one_rule, project
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi.middleware import RateLimitMiddleware as Around
from ratelimit_mw.django import limit, middleware
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as AroundWSGI

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
    """request.ratelimit.settle corrects what was consumed once the request is over."""

    def view(request: Any, cost: int) -> HttpResponse:
        request.ratelimit.settle(cost)
        return HttpResponse()

    with project(one_rule("10/minute", cost=3), path("<int:cost>", view), is_async=is_async) as served:
        assert [served.ask(f"/{cost}")["x-ratelimit-remaining"] for cost in (0, 5, 1)] == ["7", "7", "2"]


@both
def test_a_slot_comes_back_when_the_view_is_done(is_async: bool) -> None:
    """A response that is whole gives its slot back at once, and so do errors and rejections of the application."""
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
    """Under a leaky-bucket queue a request waits until those before it have gone, and a full one rejects."""
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


def breaking(where: str) -> Any:
    """A middleware that fails before the view, after it, or on the way to it."""

    class Breaking:
        sync_capable = async_capable = True

        def __init__(self, get_response: Any) -> None:
            self.get_response = get_response
            if iscoroutinefunction(get_response):
                markcoroutinefunction(self)

        def __call__(self, request: Any) -> Any:
            return self._acall(request) if iscoroutinefunction(self) else self._call(request)

        def _call(self, request: Any) -> Any:
            fail_at("before")
            response = self.get_response(request)
            fail_at("after")
            return response

        async def _acall(self, request: Any) -> Any:
            fail_at("before")
            response = await self.get_response(request)
            fail_at("after")
            return response

        def process_view(self, request: Any, *_: Any) -> None:
            fail_at("view")

    def fail_at(place: str) -> None:
        if place == where:
            raise ZeroDivisionError

    return Breaking


@both
@pytest.mark.parametrize("where", ["before", "view", "after"])
def test_a_middleware_below_that_fails_settles_too(where: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever something below raises, it counts as 500, and the slot comes back."""
    monkeypatch.setattr("django_calls.breaking", breaking(where), raising=False)
    limiter = one_rule("2/minute; 1 concurrent", count_when={"status": 500})
    listed = [*MIDDLEWARE, "django_calls.breaking"]
    with project(limiter, is_async=is_async, middleware=listed) as served:
        assert served.statuses() == [500, 500, 429]
    assert limiter.peek({"ip": CLIENT}).decisions[1].allowed


@both
def test_a_middleware_below_that_answers_is_counted(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What never reaches a view is a request, too."""

    def answering_at_once(get_response: Any) -> Any:
        return lambda request: HttpResponse("cached")

    monkeypatch.setattr("django_calls.answering", answering_at_once, raising=False)
    with project(one_rule(), is_async=is_async, middleware=[*MIDDLEWARE, "django_calls.answering"]) as served:
        assert served.statuses() == [200, 200, 429]


def test_cancelled_while_it_is_settled_it_is_settled() -> None:
    """A request that is cancelled when its answer is ready, and the store still has to hear of it, keeps no slot."""

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
