"""A view settles tokens by the name of their rule: in the view, in a stream, after the response, for lost clients."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from calls import aask, http_scope
from redis_handles import PATIENT, address
from servers import Server
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.starlette import RateLimitMiddleware
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.testing import ManualClock

View = Callable[[Request], Any]
RULES = [Rule(name="requests", limits="100/minute"), Rule(name="tokens", limits="5000/minute", cost=100)]
_numbers = itertools.count(1)


class Site:
    """An application with one view, a limiter and one client."""

    def __init__(self, limiter: Limiter, loop: asyncio.Runner) -> None:
        self.limiter, self.loop = limiter, loop
        self.client = f"198.51.100.{next(_numbers)}"

    def app(self, view: View) -> Starlette:
        middleware = [Middleware(RateLimitMiddleware, limiter=self.limiter)]
        return Starlette(routes=[Route("/", view)], middleware=middleware)

    def ask(self, view: View, times: int = 1) -> list[int]:
        async def requests() -> list[int]:
            codes = [(await aask(self.app(view), client=self.client)).status_code for _ in range(times)]
            await asyncio.gather(*self.limiter._tasks.running)
            return codes

        return self.loop.run(requests())

    def left(self) -> list[int]:
        return [decision.remaining for decision in self.limiter.peek({"ip": self.client}, cost=0).decisions]


@pytest.fixture(params=["memory", "redis"])
def site(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[Site]:
    store = MemoryStore() if request.param == "memory" else open_store(address(redis_server), PATIENT)
    limiter = Limiter(RULES, store, ManualClock(1_000_000.0))
    with asyncio.Runner() as loop:
        yield Site(limiter, loop)
        loop.run(limiter.aclose())


def test_a_rule_is_refunded_or_reset_by_the_view(site: Site) -> None:
    """A reset forgets earlier requests at once, and the rest of the request does not charge it."""

    async def plain(request: Request) -> Response:
        return PlainTextResponse("done")

    async def view(request: Request) -> Response:
        request.state.ratelimit["requests"].refund()
        request.state.ratelimit["tokens"].settle(9)
        request.state.ratelimit["tokens"].reset()
        return PlainTextResponse("done")

    site.ask(plain, times=4)
    assert site.left() == [96, 4600]
    site.ask(view)
    assert site.left() == [96, 5000]


def test_a_cost_is_settled_after_the_response(site: Site) -> None:
    """A background task, and a task that ends after the request, settle later than the middleware."""
    tasks: list[asyncio.Task[None]] = []
    has_ended = asyncio.Event()

    async def view(request: Request) -> Response:
        verdict = request.state.ratelimit

        async def later() -> None:
            await has_ended.wait()
            verdict["tokens"].settle(7)

        tasks.append(asyncio.create_task(later()))
        return PlainTextResponse("done", background=BackgroundTask(verdict["tokens"].settle, 3000))

    async def scenario() -> None:
        assert (await aask(site.app(view), client=site.client)).status_code == 200
        await asyncio.gather(*site.limiter._tasks.running)
        assert (await site.limiter.apeek({"ip": site.client}, 0)).decisions[1].remaining == 2000
        has_ended.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*site.limiter._tasks.running)

    site.loop.run(scenario())
    assert site.left() == [99, 4993]


async def hang_up(app: Starlette, client: str, steps: int) -> None:
    """Cancel a request ``steps`` turns of the loop after the first chunk of its response."""
    has_begun = asyncio.Event()

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        if message.get("body"):
            has_begun.set()

    request = asyncio.ensure_future(app(http_scope(client=(client, 1)), receive, send))
    await has_begun.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize("form", ["verdict", "limiter"])
def test_a_client_that_hangs_up_pays_for_what_it_used(site: Site, form: str) -> None:
    """The server cancels the request at any step of its stream. Its tokens are settled all the same."""
    used: list[int] = []

    async def view(request: Request) -> Response:
        verdict = request.state.ratelimit

        async def chunks() -> AsyncIterator[str]:
            tokens = 0
            try:
                while True:
                    tokens += 1
                    yield "word "
                    await asyncio.sleep(0)
            finally:
                used.append(tokens)
                if form == "verdict":
                    verdict["tokens"].settle(tokens)
                else:
                    await site.limiter.asettle(verdict, tokens, rule="tokens")

        return StreamingResponse(chunks())

    async def scenario() -> None:
        for steps in range(20):
            await hang_up(site.app(view), site.client, steps)
            while len(used) == steps:  # Python closes the stream when it is collected
                gc.collect()
                await asyncio.sleep(0)
            await asyncio.gather(*site.limiter._tasks.running)

    site.loop.run(scenario())
    assert len(used) == 20
    assert site.left() == [80, 5000 - sum(used)]
