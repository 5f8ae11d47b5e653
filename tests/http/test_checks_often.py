"""Many checks in one request: their headers, their true cost, and the slots of threads."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from calls import ask, ask_wsgi
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette_apps import application

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.http.limits import DECIDED
from ratelimit_mw.starlette import check
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware
from ratelimit_mw.wsgi import check as wsgi_check


def rule(limits: str, **options: Any) -> Rule:
    return Rule(name="mail", limits=limits, match={"view": ""}, **options)


def limited(*rules: Rule) -> Limiter:
    return Limiter(rules, clock=ManualClock(1_000_000.0))


def left(limiter: Limiter, **features: Any) -> int:
    plan = limiter.rules.plan_named("mail", None)
    return limiter.decide(plan, {"ip": "192.0.2.7", **features}, 0, False).decisions[0].remaining


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_stream_keeps_no_verdicts() -> None:
    """A client may choose how long it streams. The rules count all checks, and slots are held until the end."""
    limiter = limited(rule("100/minute"), Rule(name="busy", limits="9 concurrent", match={"view": ""}))
    kept: list[int] = []

    async def view(request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(20):
                await check(request, "mail")
                yield "part"
            await check(request, "busy")
            kept.append(len(request.scope[DECIDED][limiter].verdicts))

        return StreamingResponse(parts())

    assert ask(application([Route("/", view)], limiter=limiter)).text == "part" * 20
    assert (kept, left(limiter)) == ([2], 80)


@pytest.mark.usefixtures("hasty")
def test_threads_of_a_request_lose_no_slot() -> None:
    """Eight threads check at the same time. Each slot is returned at the end of the response."""
    limiter = limited(rule("8 concurrent"))
    with ThreadPoolExecutor(8) as threads:

        def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            for checked in [threads.submit(wsgi_check, environ, "mail") for _ in range(8)]:
                assert checked.result()
            start_response("200 OK", [])
            return [b"ok"]

        guarded = RateLimitMiddleware(app, limiter=limiter)
        assert {ask_wsgi(guarded).status_code for _ in range(50)} == {200}
    assert left(limiter) == 8
