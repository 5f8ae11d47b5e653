"""Ways in which a Redis goes away for a second and comes back, and applications that continue meanwhile, watched."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from calls import BODY, START, asend_bare, http_scope, sending
from redis_handles import client, hit
from servers import HOST, cluster_running, redis_running, sentinel_running, wait_for

from ratelimit_mw import Limiter, Quota, Rule, StoreError, Verdict
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.slot_map import slot_of

POLICIES = ("allow", "deny", "local")
AWAY = 1.0
QUICK = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
LIMIT = build_limit("api", 0, Quota.parse("1000000/day"), "sliding-window-counter")
HIT = hit(LIMIT)
SLOT = slot_of(b"rl:" + HIT.key.encode())


class Outage(NamedTuple):
    """A URL, and functions that stop its server and bring it back, unless another server takes over."""

    address: str
    happens: Callable[[], None]


@contextmanager
def paused(folder: Path) -> Iterator[Outage]:
    """CLIENT PAUSE: the server lives and executes nothing."""
    with redis_running(folder) as server, client(server) as admin:

        def happens() -> None:
            admin.client_pause(int(AWAY * 1000))
            time.sleep(AWAY)

        yield Outage(f"redis://{HOST}:{server.port}", happens)


@contextmanager
def stopped(folder: Path) -> Iterator[Outage]:
    """SIGSTOP: the kernel accepts connections, and no process reads from them."""
    with redis_running(folder) as server:

        def happens() -> None:
            server.pause()
            time.sleep(AWAY)
            server.resume()

        yield Outage(f"redis://{HOST}:{server.port}", happens)


@contextmanager
def restarted(folder: Path) -> Iterator[Outage]:
    """SIGKILL, and another one on the same port."""
    with redis_running(folder) as server:

        def happens() -> None:
            server.kill()
            time.sleep(AWAY)
            server.start()

        yield Outage(f"redis://{HOST}:{server.port}", happens)


@contextmanager
def failed_over(folder: Path) -> Iterator[Outage]:
    """A primary under Sentinel that is killed."""
    with (
        redis_running(folder, *QUICK) as primary,
        redis_running(folder, *QUICK, "--replicaof", f"{HOST} {primary.port}"),
        sentinel_running(folder, "mymaster", primary) as sentinel,
        client(sentinel) as asked,
    ):
        wait_for(lambda: [each["master-link-status"] for each in asked.sentinel_slaves("mymaster")] == ["ok"], "all")
        yield Outage(f"redis+sentinel://{HOST}:{sentinel.port}/mymaster/0", primary.kill)


@contextmanager
def replaced(folder: Path) -> Iterator[Outage]:
    """The primary of a cluster that has the key is killed."""
    with cluster_running(folder) as nodes:
        owner = nodes[SLOT * 3 // 16384]
        yield Outage(f"redis+cluster://{HOST}:{nodes[0].port},{HOST}:{nodes[1].port}", owner.kill)


@contextmanager
def replaced_while_stopped(folder: Path) -> Iterator[Outage]:
    """The same, with a primary that is silent instead of dead."""
    with cluster_running(folder) as nodes:
        owner = nodes[SLOT * 3 // 16384]
        yield Outage(f"redis+cluster://{HOST}:{nodes[0].port},{HOST}:{nodes[1].port}", owner.pause)


OUTAGES: dict[str, Callable[[Path], AbstractContextManager[Outage]]] = {
    "CLIENT PAUSE": paused,
    "SIGSTOP": stopped,
    "SIGKILL and restart": restarted,
    "Sentinel fails over": failed_over,
    "a Cluster's primary is killed": replaced,
    "a Cluster's primary is stopped": replaced_while_stopped,
}


def limiter(address: str, policy: str) -> Limiter:
    rule = Rule(name=LIMIT.rule, limits=str(LIMIT.quota), on_store_error=policy)
    return Limiter([rule], open_store(address), settings=Settings(rejection_cache=0))


class Seen(NamedTuple):
    """One response: its start, its duration in seconds, its status, and its verdict."""

    at: float
    seconds: float
    status: int
    verdict: Verdict

    @property
    def by_store(self) -> bool:
        decisions = self.verdict.decisions
        return self.status == 200 and bool(decisions) and not decisions[0].local


class Watched(NamedTuple):
    """Answers by policy, when the store was there again, and the longest stall of the loop in seconds."""

    seen: dict[str, list[Seen]]
    back_at: float
    stall: float = 0.0


def goes_and_returns(outage: Outage) -> float:
    """Let it happen; when the first of those calls was made that the store, or its successor, has answered."""
    asked_at = time.monotonic()

    def is_back() -> bool:
        nonlocal asked_at
        asked_at, store = time.monotonic(), open_store(outage.address, 200_000)
        with closing(store), suppress(StoreError):
            store.ping()
            return True
        return False

    outage.happens()
    wait_for(is_back, "the store or its successor")
    return asked_at


def served(seen: dict[str, list[Seen]], since: float = 0.0) -> bool:
    """Whether the store has answered a request for each policy that began after a time."""
    return all(any(one.by_store and one.at >= since for one in each) for each in seen.values())


async def watched_on_a_loop(outage: Outage) -> Watched:
    """Three ASGI applications, one for each policy, that are asked all the time."""
    limiters = {policy: limiter(outage.address, policy) for policy in POLICIES}
    seen: dict[str, list[Seen]] = {policy: [] for policy in POLICIES}
    ends = asyncio.Event()
    clients = [
        asyncio.create_task(_asking(RateLimitMiddleware(sending(START, BODY), limiter=each), seen[policy], ends))
        for policy, each in limiters.items()
        for _ in range(4)
    ]
    stall = asyncio.create_task(longest_stall(ends))
    try:
        await asyncio.to_thread(wait_for, lambda: served(seen), "a response by the store for each policy")
        back_at = await asyncio.to_thread(goes_and_returns, outage)
        await asyncio.sleep(2.3 - (time.monotonic() - back_at))
        await asyncio.to_thread(wait_for, lambda: served(seen, back_at), "a response by the store after its return")
    finally:
        ends.set()
        await asyncio.gather(*clients)
        for each in limiters.values():
            await each.aclose()
    return Watched(seen, back_at, await stall)


async def _asking(app: RateLimitMiddleware, seen: list[Seen], ends: asyncio.Event) -> None:
    while not ends.is_set():
        at, began = time.monotonic(), clock()
        state: dict[str, Any] = {}
        start = (await asend_bare(app, http_scope(state=state)))[0]
        seen.append(Seen(at, clock() - began, start["status"], state["ratelimit"]))
        await asyncio.sleep(0.01)


async def longest_stall(ends: asyncio.Event) -> float:
    """The longest time by which a turn of the loop that was to be in 1 ms came late, in seconds."""
    longest, before = 0.0, clock()
    while not ends.is_set():
        await asyncio.sleep(0.001)
        now = clock()
        longest, before = max(longest, now - before - 0.001), now
    return longest


_waited: dict[str, int] = {}
"""For each thread of this process that was seen, for how many nanoseconds it had to wait for a processor."""


def clock() -> float:
    """Seconds, without those in which a thread here was ready to run and the machine had no processor for it.

    All threads count: the others wait for one that was stopped while it ran Python.
    """
    for thread in Path("/proc/self/task").glob("*"):  # nothing where there is no Linux
        with suppress(OSError, IndexError):  # it has ended
            _waited[thread.name] = int((thread / "schedstat").read_text("ascii").split()[1])
    return time.monotonic() - sum(list(_waited.values())) / 1e9


def watched_in_threads(outage: Outage) -> Watched:
    """Three limiters, one for each policy, that threads ask all the time."""
    limiters = {policy: limiter(outage.address, policy) for policy in POLICIES}
    seen: dict[str, list[Seen]] = {policy: [] for policy in POLICIES}
    ends = threading.Event()
    threads = [
        threading.Thread(target=_hitting, args=(each, seen[policy], ends), daemon=True)
        for policy, each in limiters.items()
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: served(seen), "a response by the store for each policy")
        back_at = goes_and_returns(outage)
        ends.wait(2.3 - (time.monotonic() - back_at))
        wait_for(lambda: served(seen, back_at), "a response by the store after its return")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for each in limiters.values():
            each.close()
    return Watched(seen, back_at)


def _hitting(asked: Limiter, seen: list[Seen], ends: threading.Event) -> None:
    while not ends.is_set():
        at, began = time.monotonic(), clock()
        verdict = asked.hit({"ip": "192.0.2.7"})
        status = 200 if verdict.allowed else 503 if verdict.unavailable else 429
        seen.append(Seen(at, clock() - began, status, verdict))
        ends.wait(0.01)
