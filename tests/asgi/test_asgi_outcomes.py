"""The ASGI middleware settles delays, outcomes, costs and slots at the end of every response."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from asgi_checker import Receive, Scope, Send
from calls import (
    OK,
    aask,
    ask,
    http_scope,
    limited,
    limiter,
    responding,
    statuses,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.starlette import check
from ratelimit_mw.testing import ManualClock

NAMED = {"view": ""}


def test_a_queue_delays_requests() -> None:
    """A leaky-bucket queue releases one request per period and rejects a request when it is full."""
    rules = [Rule(name="queue", limits="50/s burst 3", algorithm={"name": "leaky-bucket", "mode": "queue"})]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))  # The clock is manual, so load does not matter

    async def scenario() -> tuple[list[int], list[float]]:
        loop, released = asyncio.get_running_loop(), []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            released.append(loop.time())
            await OK(scope, receive, send)

        guarded = RateLimitMiddleware(app, limiter=rate)
        responses = await asyncio.gather(*(aask(guarded) for _ in range(4)))
        return [response.status_code for response in responses], released

    codes, released = asyncio.run(scenario())
    assert sorted(codes) == [200, 200, 200, 429]
    assert released[-1] - released[0] >= 0.035


def test_twenty_concurrent_failing_logins_allow_three() -> None:
    """The rule counts only failures. Each request reserves its cost first, so a burst stays within the limit."""
    rate = limiter("3/minute", count_when={"status": [401, 403]})

    async def scenario() -> list[int]:
        arrived = asyncio.Event()

        async def login(scope: Scope, receive: Receive, send: Send) -> None:
            await arrived.wait()
            await responding(401)(scope, receive, send)

        guarded = limited(login, rate)
        storm = [asyncio.create_task(aask(guarded)) for _ in range(20)]
        await asyncio.sleep(0.01)
        arrived.set()
        return [response.status_code for response in await asyncio.gather(*storm)]

    assert sorted(asyncio.run(scenario())) == [401] * 3 + [429] * 17


def test_an_outcome_that_does_not_count_is_refunded() -> None:
    """A success (200) and an error (500) refund the reservation. A failed login keeps the reservation."""

    async def login(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/500":
            raise ValueError("broken")
        await responding(int(scope["path"][1:]))(scope, receive, send)

    app = limited(login, limiter("2/minute", count_when={"status": 401}))
    assert statuses(app, 5, path="/200") == [200] * 5
    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            ask(app, path="/500")
    assert statuses(app, 4, path="/401") == [401, 401, 429, 429]
    assert ask(app, path="/200").status_code == 429


def test_an_error_counts_when_500_counts() -> None:
    """An application that raises before its response counts as status 500, which the server sends."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    app = limited(broken, limiter("2/minute", count_when={"status": 500}))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            ask(app)
    assert ask(app).status_code == 429


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("cost", "remaining"), [(0, 10), (1, 9), (4, 6), (25, 0)])
def test_the_application_settles_the_true_cost(cost: int, remaining: int, fails: bool) -> None:
    """``verdict.settle`` replaces the reserved cost after the response, even when the application then raises."""
    rate = limiter("10/minute", key=[])

    async def work(request: Request) -> PlainTextResponse:
        request.state.ratelimit.settle(cost)
        if fails:
            raise ValueError("broken")
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", work)], middleware=[Middleware(RateLimitMiddleware, limiter=rate)])
    if fails:
        with pytest.raises(ValueError, match="broken"):
            ask(app)
    else:
        assert ask(app).headers["x-ratelimit-remaining"] == "9"
    assert rate.peek({}, cost=0).decisions[0].remaining == remaining


class Stop(BaseException):
    """An error of a server or a library, which is no ``Exception``."""


ENDINGS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), Stop(), ValueError("broken")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_the_application_releases_its_slot(ending: BaseException) -> None:
    """Shutdown, cancellation and an error release the slot at once and end the heartbeat of its lease."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ending

    async def call() -> None:
        with pytest.raises(type(ending)):
            await app_limited(http_scope(), None, None)  # type: ignore[arg-type]

    rate = limiter("1 concurrent; 9/minute", count_when={"status": 500})
    app_limited = RateLimitMiddleware(app, limiter=rate)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(call())
    finally:
        loop.close()
    assert [decision.remaining for decision in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions] == [1, 8]
    assert rate._slots.renewed._held == set()
    rate.close()


def test_a_closed_coroutine_releases_its_slot() -> None:
    """It can no longer await the store, so the slot is returned by a blocking call."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)

    rate = limiter("1 concurrent")
    call: Any = RateLimitMiddleware(app, limiter=rate)(http_scope(), None, None)  # type: ignore[arg-type]
    copy_context().run(call.send, None)  # the context of a task, as on an event loop
    assert rate.peek({"ip": "192.0.2.7"}).allowed is False
    rate.waits = True
    call.close()
    assert rate.peek({"ip": "192.0.2.7"}).allowed
    rate.close()


def test_a_request_cancelled_in_the_queue_releases_its_slot() -> None:
    """A client that disconnects while its request waits in the queue holds no slot."""
    queue = {"name": "leaky-bucket", "mode": "queue"}
    rules = [Rule(name="slots", limits="2 concurrent"), Rule(name="q", limits="1/hour burst 2", algorithm=queue)]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    guarded = RateLimitMiddleware(OK, limiter=rate)

    async def scenario() -> None:
        assert (await aask(guarded)).status_code == 200
        waiting = asyncio.create_task(aask(guarded))
        while rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining != 1:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)  # it waits in the queue
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 2
    assert rate._slots.renewed._held == set()
    rate.close()


@pytest.mark.parametrize(("user", "expected", "remaining"), [("eve", [403, 403], 7), ("bob", [200, 429], 9)])
def test_the_status_of_a_rejection_is_the_outcome(user: str, expected: list[int], remaining: int) -> None:
    """A 403 of a deny list in a plain application counts as a 403, and not as a 429."""
    rules = [
        {"name": "forbidden", "limits": "9/minute", "count_when": {"status": [403]}},
        {"name": "named", "limits": "1/minute", "key": ["user"], "match": {"view": ""}},
    ]
    settings = {"rules": rules, "lists": {"deny": {"user": ["eve"]}}}
    rate = Limiter.from_settings(settings, clock=ManualClock(1_000_000.0))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await check(SimpleNamespace(scope=scope), "named", user=user)
        await OK(scope, receive, send)

    assert statuses(limited(app, rate), 2) == expected
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == remaining


def test_a_failing_rejection_counts_as_an_error() -> None:
    """Where your own function raises, the client receives a 500, which is the outcome."""
    rules = [Rule(limits="9/minute", count_when={"status": [500]}), Rule(name="named", limits="1/minute", match=NAMED)]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await check(SimpleNamespace(scope=scope), "named")
        await OK(scope, receive, send)

    def fail(request: Any, verdict: Any) -> Any:
        raise OSError("broken")

    guarded = limited(app, rate, rejection=fail)
    ask(guarded)
    with pytest.raises(OSError, match="broken"):
        ask(guarded)
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 8
