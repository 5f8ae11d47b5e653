"""Measure the costs of decisions: ``python -m benchmarks.capacity.measure``, or with the URLs of your own stores.

The keys have a prefix of their own, and expire within 40 s if they are not removed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import selectors
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from secrets import token_hex
from typing import Any, Final, NamedTuple

from benchmarks.capacity.costs import Costs, MeasuredCosts, save_costs
from benchmarks.capacity.fit import fit
from benchmarks.capacity.servers import Servers, Totals, subtract
from benchmarks.servers import redis_nodes
from benchmarks.timing import progress
from ratelimit_mw.limiter.limiter import Limiter
from ratelimit_mw.rules.options import Consistency
from ratelimit_mw.rules.rule import Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import check_store_url
from ratelimit_mw.stores.redis.store import RedisStore

_PHASE: Final = 0.6  # seconds
_WARM_UP: Final = 0.15
_AT_ONCE: Final = 64
_PAUSES: Final = (0.0005, 0.002, 0.01)
"""Seconds between two decisions."""
_CLIENTS: Final = [{f"f{i}": f"client-{n}" for i in range(3)} for n in range(500)]
_PERIODS: Final = ("10s", "15s", "20s")
_TABLES: Final = 70
"""Bytes in the tables of a server for each key, besides MEMORY USAGE."""
_CONNECTION: Final = 20_000.0  # bytes, measured with CLIENT LIST of Redis 7.0.
_BUDGET: Final = 5.0  # seconds of a call.
_KEYS_PER_CALL: Final = 500


class Phase(NamedTuple):
    """Decisions of one kind."""

    each: Totals
    """Of a decision: its parts, its times and its bytes."""
    times: list[float]
    """Of each decision, in microseconds."""


class Measurement:
    """The phases on one store, on an event loop."""

    def __init__(self, url: str, phase: float) -> None:
        prefix = f"{check_store_url(url)[1].prefix}capacity:{token_hex(5)}:"
        self._store = RedisStore(url, prefix, int(_BUDGET * 1e6))
        self._seconds = phase

    async def run(self) -> MeasuredCosts:
        store = self._store
        await store.astart()
        store.start()
        self._servers = servers = Servers(store, _BUDGET)
        try:
            await self._learn_idle()
            kinds = [(1, 1), (3, 1), *([(3, 3)] if servers.is_cluster else [])]
            alone = [await self._phase(*kind) for kind in kinds]
            together = [await self._phase(*kind, at_once=_AT_ONCE) for kind in kinds]
            blocking = [await self._phase(*kind, is_blocking=True) for kind in kinds]
            paused = [await self._phase(1, 1, pause=pause) for pause in _PAUSES]
            local = await self._phase(1, 1, consistency="leased")
            return self._result(alone, together, blocking, paused, local)
        finally:
            await self._clean_up()

    def _limiter(self, limits: int, slots: int, consistency: Consistency = "exact") -> Limiter:
        rules = [
            Rule(name=f"rule-{i}", limits=f"1000000000/{_PERIODS[i]}", key=[key], consistency=consistency)
            for i, key in enumerate(["f0", "f1", "f2"] if slots > 1 else ["f0"] * limits)
        ]
        return Limiter(rules, self._store, settings=Settings(fleet_size=1))

    async def _learn_idle(self) -> None:
        """Measure the cost of reading the counters, and the CPU of the servers without a request."""
        totals = [self._servers.totals() for _ in range(5)]
        readings = [subtract(after, before) for before, after in pairwise(totals)]
        self._reading = {name: statistics.median(each[name] for each in readings) for name in readings[0]}
        await asyncio.sleep(1)
        second = subtract(subtract(self._servers.totals(), totals[-1]), self._reading)
        self._idle = second["server"] / second["wall"]

    async def _phase(
        self,
        limits: int,
        slots: int,
        at_once: int = 1,
        pause: float = 0.0,
        is_blocking: bool = False,
        consistency: Consistency = "exact",
    ) -> Phase:
        limiter, times = self._limiter(limits, slots, consistency), []

        async def decide(features: dict[str, str]) -> None:
            began = time.perf_counter()
            limiter.hit(features) if is_blocking else await limiter.ahit(features)
            times.append((time.perf_counter() - began) * 1e6)

        await _serve(decide, at_once, pause, _WARM_UP)
        times.clear()
        before = self._servers.totals()
        decisions = await _serve(decide, at_once, pause, self._seconds)
        totals = subtract(subtract(self._servers.totals(), before), self._reading)
        began = time.process_time()
        await _serve(_nothing, at_once, pause, 2 * self._seconds, decisions)
        generator = (time.process_time() - began) * 1e6
        totals["server"] -= self._idle * totals["wall"]
        totals["client"] -= generator
        totals["wall"] -= generator
        if limiter.local_decisions:
            raise SystemExit(f"store {self._store.name} failed during the measurement. Measure it when it is healthy")
        parts = {"decision": 1.0, "operation": float(slots), "hit": float(limits)}
        return Phase({name: total / decisions for name, total in totals.items()} | parts, times)

    def _result(
        self, alone: list[Phase], together: list[Phase], blocking: list[Phase], paused: list[Phase], local: Phase
    ) -> MeasuredCosts:
        is_cluster, infos, calls = self._servers.is_cluster, self._servers.info(), [*alone, *together]
        of_server = ("message", "command", "hit") if is_cluster else ("command", "operation", "hit")
        of_client = ("decision", "message", "command", "hit") if is_cluster else ("decision", "message", "hit")
        of_thread = ("decision", "command", "hit") if is_cluster else ("decision", "hit")
        of_bytes = ("command", "operation", "hit")
        wakes, idle = _wakes("client", alone[0], paused), round(self._idle / len(infos) * 1e6, 1)
        one = alone[0].each
        return MeasuredCosts(
            about=f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()} on {platform.machine()}"
            f" with {os.cpu_count()} cores",
            rtt=round(max(0.0, one["wall"] - one["client"] - one["server"]), 1),
            jitter=_jitter(paused),
            server=_costs("server", of_server, calls, wakes=_wakes("server", alone[0], paused), idle=idle),
            client=_costs("client", of_client, calls, wakes=wakes),
            blocking=_costs("client", of_thread, blocking, wakes=wakes),
            local=round(max(0.0, local.each["client"]), 2),
            sent=_costs("sent", of_bytes, calls),
            received=_costs("received", of_bytes, calls),
            state=round(self._servers.memory(self._keys()[:20]) + _TABLES, 1),
            connection=_CONNECTION,
            is_cluster=is_cluster,
        )

    async def _clean_up(self) -> None:
        keys = self._keys()
        for i in range(0, len(keys), _KEYS_PER_CALL):
            await self._store.aforget(keys[i : i + _KEYS_PER_CALL])
        await self._store.aclose()

    def _keys(self) -> list[str]:
        plans = [self._limiter(3, slots).match({}) for slots in (1, 3)]
        return list({key: None for plan in plans for each in _CLIENTS for _, key, _ in plan.hits(each)})


async def _serve(
    decide: Callable[[dict[str, str]], Awaitable[object]],
    at_once: int,
    pause: float,
    seconds: float,
    most: int = 1 << 60,
) -> int:
    """Decide requests one after another, or in groups at the same time. Return their number."""
    ends, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < ends and done < most:
        if at_once == 1:
            await asyncio.sleep(pause)  # without a pause, too: the loop must not seem blocked
            await decide(_CLIENTS[0 if pause else done % len(_CLIENTS)])
        else:
            await asyncio.gather(*map(decide, (_CLIENTS[(done * 7 + i * 11) % len(_CLIENTS)] for i in range(at_once))))
        done += at_once
    return done


async def _nothing(_: dict[str, str]) -> None:
    pass


def _costs(field: str, parts: Sequence[str], phases: Sequence[Phase], **others: Any) -> Costs:
    costs = fit([[phase.each[part] for part in parts] for phase in phases], [phase.each[field] for phase in phases])
    found: dict[str, Any] = {part: round(cost, 2) for part, cost in zip(parts, costs, strict=True)}
    return Costs(**found, **others)


def _wakes(field: str, alone: Phase, paused: Sequence[Phase]) -> tuple[tuple[float, float], ...]:
    """Return the extra cost of a decision after each pause."""
    usual = alone.each[field]
    points = [(alone.each["wall"] - usual, 0.0)]
    points += [(pause * 1e6, max(0.0, each.each[field] - usual)) for pause, each in zip(_PAUSES, paused, strict=True)]
    return tuple((round(pause, 1), round(cost, 2)) for pause, cost in points)


def _jitter(paused: Sequence[Phase]) -> tuple[float, ...]:
    """Return 100 percentiles of the differences from the mean. Each phase has its own mean."""
    found = sorted(each - statistics.mean(phase.times) for phase in paused for each in phase.times)
    return tuple(round(found[(2 * i + 1) * len(found) // 200], 1) for i in range(100))


def measure(url: str, phase: float = _PHASE) -> MeasuredCosts:
    """Measure a store on Redis. This takes about 15 s, with phases of 0.6 s."""
    # epoll would round each pause up to a millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(Measurement(url, phase).run())


def main(urls: Sequence[str]) -> None:
    """Measure these stores, or a server and a cluster on this machine, and save the costs."""
    for url in urls:
        save_costs(measure(url))
    for nodes in () if urls else (1, 3):
        progress(f"measuring {nodes} server{'s' * (nodes > 1)}")
        with redis_nodes(nodes) as servers:
            save_costs(measure(servers.url))


if __name__ == "__main__":
    main(sys.argv[1:])
