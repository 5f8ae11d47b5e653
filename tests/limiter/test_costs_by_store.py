"""Estimates, true costs and debts are the same on every store, blocking and awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis_handles import PATIENT, address
from servers import HOST, Server

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store
from ratelimit_mw.testing import ManualClock

ALGORITHMS = ["fixed-window", "sliding-window", "sliding-window-log", "tiered-window", "token-bucket", "gcra"]
WHO = {"ip": "192.0.2.7"}


@pytest.fixture(params=["memory", "lmdb", "redis", "memcached"])
def url(request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server, memcached_server: Server) -> str:
    urls = {
        "memory": "memory://",
        "lmdb": f"lmdb://{tmp_path}/counts",
        "redis": address(redis_server),
        "memcached": f"memcached://{HOST}:{memcached_server.port}",
    }
    return urls[request.param]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_estimate_is_capped_and_settled(url: str, algorithm: str) -> None:
    """A request for more than the limit passes alone. Its true cost replaces the estimate, and a debt outlives it."""

    async def awaited(rate: Limiter) -> list[Any]:
        async def hit(tokens: int) -> Any:
            return await rate.ahit({**WHO, "tokens": tokens})

        first = await hit(10**9)
        full = [left(rate), bool(await hit(1))]
        await rate.asettle(first, 30)
        settled = [left(rate), bool(await hit(0))]
        await rate.asettle(await hit(1), 500)
        result = [*full, *settled, left(rate), bool(await hit(1))]
        await rate.aclose()
        return result

    def blocking(rate: Limiter) -> list[Any]:
        def hit(tokens: int) -> Any:
            return rate.hit({**WHO, "tokens": tokens})

        first = hit(10**9)
        full = [left(rate), bool(hit(1))]
        rate.settle(first, 30)
        settled = [left(rate), bool(hit(0))]
        rate.settle(hit(1), 500)
        result = [*full, *settled, left(rate), bool(hit(1))]
        rate.close()
        return result

    def left(rate: Limiter) -> int:
        return rate.peek(WHO, cost=0).decisions[0].remaining

    def limiter(way: str) -> Limiter:
        name = f"costs-{algorithm}-{way}"
        rule = Rule(name=name, limits="100/minute", algorithm=algorithm, cost="tokens")  # type: ignore[arg-type]
        return Limiter([rule], open_store(url, PATIENT), ManualClock(1_000_000.0))

    expected = [0, False, 70, True, 0, False]
    assert blocking(limiter("blocking")) == expected
    assert asyncio.run(awaited(limiter("awaited"))) == expected
