"""Finding the route of a request: the middleware, beside asking Starlette's own router once more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Match, Route

from benchmarks.timing import ROUNDS, per_call, table
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.request import ASGIRequest

SIZES = (2, 60, 600)
CALLS = 300


async def view(request: Any) -> None: ...


def scopes(paths: list[str]) -> list[dict[str, Any]]:
    return [{"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []} for path in paths]


def asking_the_router(app: Starlette, asked: Callable[[int], list[dict[str, Any]]]) -> Callable[[int], None]:
    """As Starlette does: one route after the other, until one takes the request."""

    def run(calls: int) -> None:
        for scope in asked(calls):
            for route in app.routes:
                if route.matches(scope)[0] is Match.FULL:
                    break

    return run


def asking_the_middleware(app: Starlette, asked: Callable[[int], list[dict[str, Any]]]) -> Callable[[int], None]:
    routes = RateLimitMiddleware(app, limits="1000000/minute").routes

    def run(calls: int) -> None:
        for scope in asked(calls):
            routes.match(ASGIRequest(scope))

    return run


def candidates(size: int) -> dict[str, Callable[[int], None]]:
    """Requests spread over all routes: to paths that were asked for before, and to paths that never were."""
    app = Starlette(routes=[Route(f"/v1/things{i}/{{id}}", view) for i in range(size)])
    everything = scopes([f"/v1/things{i * 7 % size}/{i}" for i in range((ROUNDS + 1) * CALLS)])
    never_seen = iter(everything)
    return {
        f"router, {size}": asking_the_router(app, lambda calls: everything[:calls]),
        f"seen, {size}": asking_the_middleware(app, lambda calls: everything[:calls]),
        f"new, {size}": asking_the_middleware(app, lambda calls: list(islice(never_seen, calls))),
    }


def report() -> str:
    times = per_call({name: run for size in SIZES for name, run in candidates(size).items()}, CALLS)
    rows = []
    for size in SIZES:
        router, known, new = (times[f"{what}, {size}"] for what in ("router", "seen", "new"))
        rows.append((str(size), *(f"{ns / 1000:.2f}" for ns in (router, known, new)), f"{known / router:.3f}"))
    head = ("routes", "the router, µs", "a path seen before, µs", "a path never seen, µs", "of the router")
    return table("Finding the route of a request", rows, head)
