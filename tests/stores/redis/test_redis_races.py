"""Four processes that race for one key through limiters, exact and leased, on one server and on a cluster."""

import asyncio
from typing import Any

import pytest
import redis
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
NOW = 1_767_268_820_500_000
WHO = {"ip": "192.0.2.7"}


@pytest.fixture
def cluster(nodes: list[Server]) -> str:
    return f"redis+cluster://{HOST}:{nodes[0].port}"


@pytest.fixture(params=["one server", pytest.param("cluster", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, redis_server: Server) -> str:
    return str(request.getfixturevalue("cluster")) if request.param == "cluster" else address(redis_server)


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


def commands(place: str) -> int:
    """The script calls that all servers of a cluster have received."""
    with redis.Redis.from_url(place.replace("redis+cluster", "redis")) as client:
        ports = [int(node.rpartition(":")[2]) for node in client.cluster("nodes")]
    calls = 0
    for port in ports:
        with redis.Redis(HOST, port) as node:
            calls += node.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return calls


@pytest.mark.usefixtures("no_reads")
def test_a_request_on_a_cluster_asks_for_its_exact_limit_alone(cluster: str) -> None:
    """Limits by IP address and user are decided here, so a request is one command. Without them, it is three."""
    rules = [
        *(Rule(name=f"lease-{key}", key=key, limits="100000/day", lease="10%") for key in ("ip", "user")),
        Rule(name="lease-endpoint", key="endpoint", limits="100000/day"),
    ]
    limiter = Limiter(rules, open_store(cluster, PATIENT), lambda: NOW, Settings(fleet_size=1))
    features = {**WHO, "user": "alice", "endpoint": "/login"}
    for _ in range(3):
        assert limiter.hit(features)
    before = commands(cluster)
    for _ in range(20):
        assert limiter.hit(features)
    assert commands(cluster) == before + 20
    limiter.close()
