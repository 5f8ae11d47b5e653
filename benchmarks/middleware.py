"""The middleware's own cost of a request: processor time with it, less that of the bare application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.timing import per_call, progress, table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware

CALLS = 1_000
BARE = "bare application"
PEER = "asgi-ratelimit 0.10, no headers"
HEADERS = [(b"host", b"example.com"), (b"user-agent", b"bench"), (b"accept", b"*/*")]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def by_ip(scope: Any) -> tuple[str, str]:
    return scope["client"][0], "default"


def driven(app: Any, path: str = "/items/42") -> Callable[[int], None]:
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
                "path": path,
                "raw_path": path.encode(),
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


def peer() -> dict[str, Any]:
    try:
        from ratelimit import RateLimitMiddleware as AsgiRateLimit
        from ratelimit import Rule as AsgiRule
        from ratelimit.backends.simple import MemoryBackend
    except ImportError:
        progress("middleware: without asgi-ratelimit, which is not installed: pip install --group bench")
        return {}
    return {PEER: AsgiRateLimit(bare, by_ip, MemoryBackend(), {r"^/": [AsgiRule(minute=10**9)]})}


def report() -> str:
    apps = {
        BARE: bare,
        **peer(),
        "no headers": ours(["1000000/minute"], []),
        "`X-RateLimit-*`": ours(["1000000/minute"], ["x-ratelimit"]),
        "`X-RateLimit-*` and `RateLimit`": ours(["1000000/minute"], ["x-ratelimit", "ratelimit"]),
        "two limits, both families": ours(["1000000/minute", "50000000/hour"], ["x-ratelimit", "ratelimit"]),
        "rejected, both families": ours(["1/day"], ["x-ratelimit", "ratelimit"], rejected=True),
    }
    times = per_call({name: driven(app) for name, app in apps.items()}, CALLS)
    base = times[BARE]
    costs = {name: time - base for name, time in times.items()}
    compared = {name: f"{cost / costs[PEER]:.2f}" if PEER in costs else "-" for name, cost in costs.items()}
    rows = [(name, f"{cost / 1000:.2f}", compared[name]) for name, cost in costs.items() if name != BARE]
    return table(
        "ASGI middleware, one request",
        rows,
        ("", "CPU, µs", "of asgi-ratelimit"),
    )
