"""Four processes that race for one key through limiters, exact and leased, on one server and on a cluster."""

import asyncio
from typing import Any

import pytest
from redis_handles import address
from servers import HOST, Server
from store_races import FORK, in_processes

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store

pytestmark, THOROUGH = pytest.mark.slow, pytest.mark.thorough

LIMIT, TRIES, PROCESSES = 400, 6_000, 4
LEASE = LIMIT // 50
PATIENT = 30_000_000  # microseconds: what is raced for is not time
WHO = {"ip": "192.0.2.7"}


@pytest.fixture(params=["one server", pytest.param("cluster", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, redis_server: Server) -> str:
    if request.param == "one server":
        return address(redis_server)
    nodes: list[Server] = request.getfixturevalue("nodes")
    return f"redis+cluster://{HOST}:{nodes[0].port}"


def run(place: str, rules: tuple[Rule, ...], start: Any, passed: Any) -> None:
    """One process: half of its tries blocking, half on an event loop, many at a time."""
    settings = Settings(on_store_error="deny", rejection_cache=0)
    limiter = Limiter(rules, open_store(place, PATIENT), settings=settings)
    start.wait(60)
    verdicts, tries = [], TRIES // PROCESSES // 2

    async def on_a_loop() -> None:
        for _ in range(tries // 250):
            verdicts.extend(await asyncio.gather(*(limiter.ahit(WHO) for _ in range(250))))
        await limiter.aclose()

    verdicts += [limiter.hit(WHO) for _ in range(tries // 2)]
    asyncio.run(on_a_loop())
    verdicts += [limiter.hit(WHO) for _ in range(tries - tries // 2)]
    passed.put("failed" if any(verdict.unavailable for verdict in verdicts) else sum(map(bool, verdicts)))
    limiter.close()


def raced(place: str, *rules: Rule) -> int:
    start = FORK.Barrier(PROCESSES)
    found = in_processes(run, *[(place, rules, start)] * PROCESSES)
    assert "failed" not in found, "the store did not answer"
    return sum(found)


@pytest.mark.parametrize("algorithm", ["sliding-window-counter", pytest.param("gcra", marks=THOROUGH)])
def test_limiters_with_leases_never_pass_more(place: str, algorithm: str) -> None:
    """At most the limit; at least all but one lease for each process."""
    found = raced(place, Rule(name=f"leased-{algorithm}", limits=f"{LIMIT}/day", algorithm=algorithm, lease="2%"))
    assert LIMIT - PROCESSES * LEASE <= found <= LIMIT
