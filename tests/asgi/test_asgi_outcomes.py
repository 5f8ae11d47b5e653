"""Delays, outcomes, costs and slots under ASGI: what is settled when a response has ended, however it ends."""

from __future__ import annotations

import asyncio

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
from ratelimit_mw.testing import ManualClock


def test_a_queue_makes_requests_wait_their_turn() -> None:
    """Under a leaky-bucket queue requests go on one period apart, and one that finds it full is rejected."""
    rules = [Rule(name="queue", limits="50/s burst 3", algorithm={"name": "leaky-bucket", "mode": "queue"})]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))  # which stands still, however slow the machine is

    async def scenario() -> tuple[list[int], list[float]]:
        loop, went_on = asyncio.get_running_loop(), []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            went_on.append(loop.time())
            await OK(scope, receive, send)

        guarded = RateLimitMiddleware(app, limiter=rate)
        answers = await asyncio.gather(*(aask(guarded) for _ in range(4)))
        return [answer.status_code for answer in answers], went_on

    found, went_on = asyncio.run(scenario())
    assert sorted(found) == [200, 200, 200, 429]
    assert went_on[-1] - went_on[0] >= 0.035


def test_twenty_failing_logins_at_once_let_three_through() -> None:
    """Only failures count, and as each request reserves its place first, no storm gets past the limit."""
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
        return [answer.status_code for answer in await asyncio.gather(*storm)]

    assert sorted(asyncio.run(scenario())) == [401] * 3 + [429] * 17


def test_what_does_not_count_is_given_back() -> None:
    """A successful login gives its reservation back; so does an error, whose status is 500; a failure keeps it."""

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


def test_an_error_counts_where_errors_count() -> None:
    """An application that raises before it answers is counted as the 500 that the server will send."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    app = limited(broken, limiter("2/minute", count_when={"status": 500}))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            ask(app)
    assert ask(app).status_code == 429


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("cost", "left"), [(0, 10), (1, 9), (4, 6), (25, 0)])
def test_the_application_states_the_true_cost(cost: int, left: int, fails: bool) -> None:
    """``verdict.settle`` replaces the reserved cost after the response, also when the application then fails."""
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
    assert rate.peek({}, cost=0).decisions[0].remaining == left


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), ValueError("broken")])
def test_a_slot_comes_back_however_the_application_ends(ending: BaseException) -> None:
    """Told to stop, cancelled or broken: the slot is free at once, and nobody renews its lease."""

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
    assert rate._slots._held == set()
    rate.close()


def test_a_request_that_is_cancelled_in_the_queue_gives_its_slot_back() -> None:
    """Who goes away while waiting for a turn holds nothing any longer."""
    queue = {"name": "leaky-bucket", "mode": "queue"}
    rules = [Rule(name="slots", limits="2 concurrent"), Rule(name="q", limits="1/hour burst 2", algorithm=queue)]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    guarded = RateLimitMiddleware(OK, limiter=rate)

    async def scenario() -> None:
        assert (await aask(guarded)).status_code == 200
        waiting = asyncio.create_task(aask(guarded))
        await asyncio.sleep(0.02)
        assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 2
    assert rate._slots._held == set()
    rate.close()
