"""In randomly nested applications, each route is rejected by its own limits only."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from calls import aask
from fastapi import APIRouter, Depends, FastAPI
from tables import each

from ratelimit_mw import Limiter
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, limit
from ratelimit_mw.testing import ManualClock

ENOUGH = 4


def _decorated(amount: int) -> Callable[[Any, str, Any], None]:
    return lambda router, path, view: router.add_api_route(path, limit(f"{amount}/minute", key=["endpoint"])(view))


def _depending(amount: int) -> Callable[[Any, str, Any], None]:
    return lambda router, path, view: router.add_api_route(path, view, dependencies=[_dependency(amount)])


def _later(amount: int) -> Callable[[Any, str, Any], None]:
    limited = RateLimit(f"{amount}/minute", key=["endpoint", "who"], features={"who": lambda: "ann"})
    return lambda router, path, view: router.add_api_route(path, view, dependencies=[Depends(limited)])


def _dependency(amount: int) -> Any:
    return Depends(RateLimit(f"{amount}/minute", key=["endpoint"]))


class RandomApplication:
    """An application and the number of requests that pass at each of its paths. None means all."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = itertools.count()
        self.passing: dict[str, int | None] = {}
        self.app = FastAPI(dependencies=[_dependency(3)])
        self._fill(self.app, [""], [3], 0)
        self.app.add_middleware(RateLimitMiddleware, limiter=Limiter(clock=ManualClock(1_000_000.0)))

    def _fill(self, router: Any, prefixes: list[str], above: list[int], depth: int) -> None:
        for _ in range(2):
            self._add_view(router, prefixes, above)
        for _ in range(self._random.randint(0, 2) if depth < 3 else 0):
            self._add_router(router, prefixes, above, depth)

    def _add_view(self, router: Any, prefixes: list[str], above: list[int]) -> None:
        path, amount = f"/view{next(self._count)}", self._random.randint(0, 3)
        ways = [_decorated, _depending, _later]

        async def view(x: str = "") -> str:
            return x

        if amount:
            self._random.choice(ways)(amount)(router, path + "/{x}", view)
        else:
            router.add_api_route(path + "/{x}", view)
        limits = [*above, amount] if amount else above
        self.passing |= {f"{prefix}{path}/7": min(limits, default=None) for prefix in prefixes}

    def _add_router(self, router: Any, prefixes: list[str], above: list[int], depth: int) -> None:
        amounts = [2] * self._random.randint(0, 1)
        inner = APIRouter(prefix=f"/router{next(self._count)}", dependencies=[_dependency(two) for two in amounts])
        places = [f"/place{next(self._count)}" for _ in range(self._random.randint(1, 2))]
        mounts = self._random.random() < 0.3
        below = [prefix + place + inner.prefix for prefix in prefixes for place in places]
        self._fill(inner, below, amounts if mounts else [*above, *amounts], depth + 1)
        for place in places:
            if mounts:
                mounted = FastAPI()
                mounted.include_router(inner)
                router.mount(place, mounted)
            else:
                router.include_router(inner, prefix=place)


@each("seed", range(20))
def test_limits_hold_only_on_their_routes(seed: int) -> None:
    """Decorators and dependencies of both kinds are on routes and routers, included twice, nested and mounted."""
    application = RandomApplication(seed)

    async def all_statuses() -> dict[str, list[int]]:
        return {
            path: [(await aask(application.app, path)).status_code for _ in range(ENOUGH)]
            for path in application.passing
        }

    codes = asyncio.run(all_statuses())
    for path, statuses in codes.items():
        passing = application.passing[path]
        passing = ENOUGH if passing is None else passing
        # FastAPI leaves out the mounts of an included router.
        assert statuses in ([200] * passing + [429] * (ENOUGH - passing), [404] * ENOUGH), path
    assert any(429 in statuses for statuses in codes.values())
