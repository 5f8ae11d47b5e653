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
from .servers import Sample, Servers

_SPAN: Final = 0.6  # seconds of a phase.
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
_MICROSECONDS: Final = ("wall", "client", "server")

STEPS: Final = 14
"""How often ``measure`` calls ``advance`` on a cluster."""


class Phase(NamedTuple):
    """Decisions of one kind, and the totals of all of them."""

    decisions: int
    limits: int
    slots: int
    sample: Sample
    times: list[float]
    """Of each decision, in microseconds."""

    def each(self, field: str) -> float:
        """Return the part of a decision. Times are in microseconds."""
        value: float = getattr(self.sample, field)
        return value / self.decisions * (1e6 if field in _MICROSECONDS else 1)

    def parts(self, columns: Sequence[str]) -> list[float]:
        calls = {"message": self.each("messages"), "command": self.each("commands")}
        every = {"decision": 1.0, **calls, "operation": float(self.slots), "hit": float(self.limits)}
        return [every[column] for column in columns]


class Measurement:
    """The phases on one store, on an event loop. ``advance`` is called after each."""

    def __init__(self, settings: Settings, advance: Callable[[], object]) -> None:
        url = str(settings.store)
        split, address = check_store_url(url)
        if not isinstance(address, Address):
            raise Failure(
                f"--measure: expected a store on Redis, for example redis://cache:6379; got {split.scheme}://"
            )
        prefix = f"{address.prefix}capacity:{token_hex(5)}:"
        self._store = RedisStore(url, prefix, int(_BUDGET * 1e6))
        self._advance = advance

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
        """Measure the cost of reading the counters, and of a second without a request."""
        self._idle = self._reading = Sample(*[0.0] * 8)
        samples = [self._servers.sample() for _ in range(5)]
        self._reading = Sample(*(statistics.median(parts) for parts in zip(*_differences(samples), strict=True)))
        sample = self._servers.sample()
        await asyncio.sleep(1)
        self._idle = self._servers.sample() - sample - self._reading
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
        limiter = self._limiter(limits, slots, consistency)

        times: list[float] = []

        async def decide(features: dict[str, str]) -> None:
            began = time.perf_counter()
            limiter.hit(features) if is_blocking else await limiter.ahit(features)
            times.append((time.perf_counter() - began) * 1e6)

        await _serve(decide, at_once, pause, _WARM_UP)
        times.clear()
        before = self._servers.sample()
        decisions = await _serve(decide, at_once, pause, _SPAN)
        sample = self._servers.sample() - before - self._reading
        began = time.process_time()
        await _serve(_nothing, at_once, pause, 2 * _SPAN, decisions)
        generator = time.process_time() - began
        sample = sample._replace(
            client=sample.client - generator,
            server=sample.server - self._idle.server / self._idle.wall * sample.wall,
            wall=sample.wall - generator,
        )
        if limiter.local_decisions:
            raise Failure(f"store {self._store.name} failed during the measurement. Measure it when it is healthy")
        self._advance()
        return Phase(decisions, limits, slots, sample, times)

    def _result(
        self, alone: list[Phase], together: list[Phase], blocking: list[Phase], paused: list[Phase], local: Phase
    ) -> MeasuredCosts:
        is_cluster = self._servers.is_cluster
        calls = [*alone, *together]
        of_server = ("message", "command", "hit") if is_cluster else ("command", "operation", "hit")
        of_client = ("decision", "message", "command", "hit") if is_cluster else ("decision", "message", "hit")
        of_bytes = ("command", "operation", "hit")
        of_thread = ("decision", "command", "hit") if is_cluster else ("decision", "hit")
        infos = self._servers.info()
        wakes = {field: _wakes(field, alone[0], paused) for field in ("server", "client")}
        hits = sum(each.decisions * each.limits for each in calls)
        copies = sum(info.get("connected_slaves", 0) for info in infos) / len(infos)
        copied = sum(each.sample.replicated for each in calls)
        return MeasuredCosts(
            about=f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()} on {platform.machine()}"
            f" with {os.cpu_count()} cores",
            rtt=round(max(0.0, alone[0].each("wall") - alone[0].each("client") - alone[0].each("server")), 1),
            jitter=_jitter(paused),
            server=Costs(
                **_fit("server", of_server, calls),
                wakes=wakes["server"],
                idle=round(self._idle.server / self._idle.wall / len(infos) * 1e6, 1),
            ),
            client=Costs(**_fit("client", of_client, calls), wakes=wakes["client"]),
            blocking=Costs(**_fit("client", of_thread, blocking), wakes=wakes["client"]),
            local=round(max(0.0, local.each("client")), 2),
            sent=Costs(**_fit("sent", of_bytes, calls)),
            received=Costs(**_fit("received", of_bytes, calls)),
            replicated=round(copied / hits / copies if copies else _REPLICATED, 1),
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


def _fit(field: str, columns: Sequence[str], phases: Sequence[Phase]) -> dict[str, Any]:
    costs = fit([phase.parts(columns) for phase in phases], [phase.each(field) for phase in phases])
    return {column: round(cost, 2) for column, cost in zip(columns, costs, strict=True)}


def _wakes(field: str, alone: Phase, paused: Sequence[Phase]) -> tuple[tuple[float, float], ...]:
    """Return the extra cost of a decision after each pause."""
    more = [max(0.0, phase.each(field) - alone.each(field)) for phase in paused]
    shortest = alone.each("wall") - alone.each(field)
    points = zip((shortest, *(pause * 1e6 for pause in _PAUSES)), (0.0, *more), strict=True)
    return tuple((round(pause, 1), round(cost, 2)) for pause, cost in points)


def _jitter(paused: Sequence[Phase]) -> tuple[float, ...]:
    """Return 100 percentiles of the differences from the mean. Each phase has its own mean."""
    found = sorted(each - statistics.mean(phase.times) for phase in paused for each in phase.times)
    return tuple(round(found[(2 * i + 1) * len(found) // 200], 1) for i in range(100))


def _differences(samples: Sequence[Sample]) -> list[Sample]:
    return [after - before for before, after in pairwise(samples)]


def measure(settings: Settings, advance: Callable[[], object]) -> MeasuredCosts:
    """Measure the store of the settings. This takes about 15 s."""
    # epoll would round each pause up to a millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(Measurement(settings, advance).run())
