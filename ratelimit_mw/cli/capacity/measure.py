"""Measures the cost of decisions on your servers and on this machine, with keys of its own that expire within 40 s."""

from __future__ import annotations

import asyncio
import os
import platform
import selectors
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from secrets import token_hex
from typing import Any, Final, NamedTuple

from ...limiter.limiter import Limiter
from ...rules.options import Consistency
from ...rules.rule import Rule
from ...settings import Settings
from ...stores import check_store_url
from ...stores.redis.address import Address
from ...stores.redis.store import RedisStore
from ..output import Failure
from .fit import fit
from .inputs import Costs, MeasuredCosts
from .servers import Servers, Totals, subtract

_PHASE: Final = 0.6  # seconds
_WARM_UP: Final = 0.15
_AT_ONCE: Final = 64
_PAUSES: Final = (0.0005, 0.002, 0.01)
"""Seconds between two decisions."""
_CLIENTS: Final = [{f"f{i}": f"client-{n}" for i in range(3)} for n in range(500)]
_PERIODS: Final = ("10s", "15s", "20s")
_TABLES: Final = 70
"""Bytes in the tables of a server for each key, besides MEMORY USAGE."""
_REPLICATED: Final = 145.0  # bytes of a hit, measured with replicas of Redis 7.0.
_CONNECTION: Final = 20_000.0  # bytes, measured with CLIENT LIST of Redis 7.0.
_MAXCLIENTS: Final = 10_000  # the default of Redis. Before Redis 7, INFO does not contain it.
_BUDGET: Final = 5.0  # seconds of a call.
_KEYS_PER_CALL: Final = 500
STEPS: Final = 14
"""How often ``measure`` calls ``advance`` on a cluster."""


class Phase(NamedTuple):
    """Decisions of one kind."""

    each: Totals
    """Of a decision: its parts, its times and its bytes."""
    times: list[float]
    """Of each decision, in microseconds."""


class Measurement:
    """The phases on one store, on an event loop. ``advance`` is called after each."""

    def __init__(self, settings: Settings, advance: Callable[[], object], phase: float) -> None:
        url = str(settings.store)
        split, address = check_store_url(url)
        if not isinstance(address, Address):
            raise Failure(
                f"--measure: expected a store on Redis, for example redis://cache:6379; got {split.scheme}://"
            )
        prefix = f"{address.prefix}capacity:{token_hex(5)}:"
        self._store = RedisStore(url, prefix, int(_BUDGET * 1e6))
        self._advance = advance
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
        self._advance()

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
            raise Failure(f"store {self._store.name} failed during the measurement. Measure it when it is healthy")
        self._advance()
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
        copies = sum(info.get("connected_slaves", 0) for info in infos)
        copied = sum(each.each["replicated"] for each in calls) / sum(each.each["hit"] for each in calls)
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
            replicated=round(copied / copies * len(infos) if copies else _REPLICATED, 1),
            state=round(self._servers.memory(self._keys()[:20]) + _TABLES, 1),
            connection=_CONNECTION,
            nodes=len(infos),
            is_cluster=is_cluster,
            maxclients=int(min(info.get("maxclients", _MAXCLIENTS) for info in infos)),
        )

    async def _clean_up(self) -> None:
        keys = self._keys()
        for i in range(0, len(keys), _KEYS_PER_CALL):
            await self._store.aforget(keys[i : i + _KEYS_PER_CALL])
        await self._store.aclose()

    def _keys(self) -> list[str]:
        plans = [self._limiter(3, slots).match({}) for slots in (1, 3)]
        return list({hit.key: None for plan in plans for each in _CLIENTS for hit in plan.hits(each)})


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


def measure(settings: Settings, advance: Callable[[], object], phase: float = _PHASE) -> MeasuredCosts:
    """Measure the store of the settings. This takes about 15 s, with phases of 0.6 s."""
    # epoll would round each pause up to a millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(Measurement(settings, advance, phase).run())
