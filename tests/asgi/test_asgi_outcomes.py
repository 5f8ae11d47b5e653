"""The ASGI middleware settles delays, outcomes, costs and slots at the end of every response."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import pytest
from asgi_checker import Receive, Scope, Send
from calls import (
    http_scope,
    limiter,
)
from limiter_ways import renewed
from tables import each

from ratelimit_mw.asgi import RateLimitMiddleware

NAMED = {"view": ""}


class Stop(BaseException):
    """An error of a server or a library, which is no ``Exception``."""


ENDINGS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), Stop(), ValueError("broken")]


@each("ending", ENDINGS)
def test_the_end_of_the_application_releases_its_slot(ending: BaseException) -> None:
    """Shutdown, cancellation and an error release the slot at once and end the heartbeat of its lease.

    An error is a 500, which does not count here. After a shutdown the outcome is unknown, so the cost is kept.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ending

    async def call() -> None:
        with pytest.raises(type(ending)) as caught:
            await app_limited(http_scope(), None, None)  # type: ignore[arg-type]
        assert caught.value is ending

    left = [1, 9] if isinstance(ending, Exception) else [1, 8]
    rate = limiter("1 concurrent; 9/minute", count_when={"status": 401})
    app_limited = RateLimitMiddleware(app, limiter=rate)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(call())
    finally:
        loop.close()
    assert [decision.remaining for decision in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions] == left
    assert renewed(rate) == 0
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
