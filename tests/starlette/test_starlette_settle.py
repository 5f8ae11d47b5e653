"""The tokens of a client that hangs up are settled, at whatever step the server cancels its request."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from calls import http_scope
from redis_handles import PATIENT, address
from servers import Server
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette_apps import application

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.testing import ManualClock

RULES = [Rule(name="requests", limits="100/minute"), Rule(name="tokens", limits="5000/minute", cost=100)]


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest, redis_server: Server, loop: asyncio.Runner) -> Iterator[Limiter]:
    store = MemoryStore() if request.param == "memory" else open_store(address(redis_server), PATIENT)
    limiter = Limiter(RULES, store, ManualClock(1_000_000.0))
    yield limiter
    loop.run(limiter.aclose())


async def hang_up(app: Any, client: str, steps: int) -> None:
    """Cancel a request ``steps`` turns of the loop after the first chunk of its response."""
    has_begun = asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
            has_begun.set()

    request = asyncio.ensure_future(app(http_scope(client=(client, 1)), receive, send))
    await has_begun.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize(("form", "client"), [("verdict", "198.51.100.1"), ("limiter", "198.51.100.2")])
def test_a_client_that_hangs_up_pays_for_what_it_used(
    limiter: Limiter, loop: asyncio.Runner, form: str, client: str
) -> None:
    """The stream settles by the verdict, or by the limiter."""
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
                    await limiter.asettle(verdict, tokens, rule="tokens")

        return StreamingResponse(chunks())

    async def scenario() -> None:
        app = application([Route("/", view)], limiter=limiter)
        for steps in range(20):
            await hang_up(app, client, steps)
            while len(used) == steps:  # Python closes the stream when it is collected
                gc.collect()
                await asyncio.sleep(0)
            if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(tasks)

    loop.run(scenario())
    assert len(used) == 20
    assert [each.remaining for each in limiter.peek({"ip": client}, cost=0).decisions] == [80, 5000 - sum(used)]
