"""An ASGI application whose views keep the processor busy, and a limit on failed logins.

A response to ``/login`` says whether the store or the process itself decided. ``/work`` responds with the process ID.
"""

import os
import time
from typing import Any

from ratelimit_mw import Limiter, Rejection, Rule, Verdict
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.settings import Settings

BUDGET = 0.2
HOLD = 3 * BUDGET
"""Seconds of a view: longer than the time budget of the store."""

limiter = Limiter(
    [Rule(name="login", key=[], match={"path": "/login"}, limits="5/day", count_when={"status": 401})],
    store=os.environ["STORE"],
    settings=Settings(store_timeout=BUDGET),
)


def work() -> None:
    """Hold the processor and the GIL, as the Python part of a view does."""
    ends = time.monotonic() + HOLD
    while time.monotonic() < ends:
        sum(range(1_000))


def who_decided(verdict: Verdict) -> bytes:
    return b"process" if any(decision.local for decision in verdict.decisions) else b"store"


def reject(_: Any, verdict: Verdict) -> Rejection:
    return Rejection(429, [], who_decided(verdict))


def respond(path: str, verdict: Verdict) -> tuple[int, bytes]:
    work()
    return (401, who_decided(verdict)) if path == "/login" else (200, str(os.getpid()).encode())


async def serve(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, body = respond(scope["path"], scope["state"]["ratelimit"])
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


asgi = RateLimitMiddleware(serve, limiter=limiter, rejection=reject)
