"""Django requests settle outcomes, costs, slots and delays at their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.deprecation import MiddlewareMixin
from django_calls import CLIENT, MIDDLEWARE, one_rule, project
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django import middleware

both = each("is_async", [False, True])
FAILURES = {"count_when": {"status": [401, 500]}}


@each("is_async", [False, True])
@each("error", [ZeroDivisionError, SystemExit])
def test_an_error_that_reaches_the_server_is_settled(error: type[BaseException], is_async: bool) -> None:
    """An error that Django hands on counts as 500. After a shutdown the outcome is unknown, so the cost is kept."""
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


def test_a_request_cancelled_in_the_queue_releases_its_slot() -> None:
    """A request that is cancelled while it waits in a queue holds no slot."""
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
