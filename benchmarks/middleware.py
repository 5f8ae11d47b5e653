"""The middleware's own cost a request: time with it, less the bare application's, in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ratelimit import RateLimitMiddleware as AsgiRateLimit
from ratelimit import Rule as AsgiRule
from ratelimit.backends.simple import MemoryBackend

from benchmarks.timing import per_call, table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware

CALLS = 1_000
HEADERS = [(b"host", b"example.com"), (b"user-agent", b"bench"), (b"accept", b"*/*")]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def by_ip(scope: Any) -> tuple[str, str]:
    return scope["client"][0], "default"


def driven(app: Any) -> Callable[[int], None]:
    """Requests one after another on one event loop."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    async def run(calls: int) -> None:
        for _ in range(calls):
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": "/items/42",
                "raw_path": b"/items/42",
                "query_string": b"",
                "root_path": "",
                "headers": HEADERS,
                "client": ("192.0.2.7", 50000),
                "server": ("127.0.0.1", 8000),
                "state": {},
            }
            await app(scope, receive, send)

    loop = asyncio.new_event_loop()
    return lambda calls: loop.run_until_complete(run(calls))


def ours(limits: list[str], headers: list[str], rejected: bool = False) -> Any:
    limiter = Limiter([Rule(name="api", limits=limits)])
    if rejected:
        limiter.hit({"ip": "192.0.2.7"})
    return RateLimitMiddleware(bare, limiter=limiter, headers=headers)


def report() -> str:
    apps = {
        "bare application": bare,
        "asgi-ratelimit 0.10, no headers": AsgiRateLimit(
            bare, by_ip, MemoryBackend(), {r"^/": [AsgiRule(minute=10**9)]}
        ),
        "no headers": ours(["1000000/minute"], []),
        "`X-RateLimit-*`": ours(["1000000/minute"], ["x-ratelimit"]),
        "`X-RateLimit-*` and `RateLimit`": ours(["1000000/minute"], ["x-ratelimit", "ratelimit"]),
        "two limits, both families": ours(["1000000/minute", "50000000/hour"], ["x-ratelimit", "ratelimit"]),
        "rejected, both families": ours(["1/day"], ["x-ratelimit", "ratelimit"], rejected=True),
    }
    times = per_call({name: driven(app) for name, app in apps.items()}, CALLS)
    base = times.pop("bare application")
    peer = times["asgi-ratelimit 0.10, no headers"] - base
    rows = [(name, f"{(t - base) / 1000:.2f}", f"{(t - base) / peer:.2f}") for name, t in times.items()]
    return table(
        f"ASGI middleware: microseconds over the bare application ({base / 1000:.2f} us)",
        rows,
        ("", "us", "of the peer"),
    )
