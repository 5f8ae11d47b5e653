"""Findings on the store: whether it replies, how fast, its clock, and the processes that share its limits."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ...clock import SECOND
from ...decision import Decision, Hit
from ...errors import RateLimitError
from ...limiter.chain.fleet import FLEET, count_processes, takes_slots
from ...limiter.limiter import Limiter
from ...settings import Settings
from ...stores import redacted_url
from ...stores.facts import Facts
from .finding import OK, PROBLEM, WARNING, Finding
from .lmdb import examine_lmdb
from .memcached import examine_memcached
from .redis import examine_cluster, examine_primary, examine_sentinel, examine_server

_PROBES: Final = 9
_SKEW: Final = 1.0
"""Seconds between two clocks that are a warning."""
_EXAMINERS: Final[Mapping[str, Callable[[Facts], Iterator[Finding]]]] = {
    "cluster": examine_cluster,
    "lmdb": examine_lmdb,
    "memcached": examine_memcached,
    "primary": examine_primary,
    "redis": examine_server,
    "replica": examine_server,
    "sentinel": examine_sentinel,
}
"""The function that judges the facts of each kind."""


def examine_store(limiter: Limiter, settings: Settings) -> Iterator[Finding]:
    """Yield the findings on a store. If it does not reply, only its servers are examined."""
    store = limiter.store
    if not limiter.waits:
        yield from _examine_memory(settings)
        return
    try:
        store.start()
        probes = [_probe(limiter) for _ in range(_PROBES)] if takes_slots(store) else []
        store.ping()
    except RateLimitError as error:
        effect = f"requests are decided by on_store_error = {settings.on_store_error!r}"
        fix = "start the server, or correct the URL, the login, the network or the rights of its user"
        yield Finding("store", f"{redacted_url(store)} unreachable ({error}): {effect}", PROBLEM, fix)
    else:
        yield Finding("store", f"{redacted_url(store)} replies", data={"store": redacted_url(store)})
        if probes:
            yield _round_trip([seconds for seconds, _, _ in probes], settings)
            yield from _clock_skew(probes, store.name)
            yield _workers(probes[-1][2], settings)
    for facts in store.facts():
        yield from _EXAMINERS.get(facts.kind, _examine_own)(facts)


def _examine_own(facts: Facts) -> Iterator[Finding]:
    """Show the facts of a store of the application."""
    values = ", ".join(f"{name} {value}" for name, value in facts.values.items())
    level, fix = (PROBLEM, "examine the store") if facts.problem else (OK, "")
    yield Finding(f"{facts.kind} {facts.name}", facts.problem or values, level, fix, dict(facts.values))


def _probe(limiter: Limiter) -> tuple[float, float, Decision]:
    """Return the seconds of a call that reads a state, the time between its ends, and the decision on the fleet."""
    begin, wall = time.perf_counter(), time.time()
    [decision] = limiter.store.apply([Hit(FLEET, FLEET.prefix, 0)], None, False)
    seconds = time.perf_counter() - begin
    return seconds, wall + seconds / 2, decision


def _examine_memory(settings: Settings) -> Iterator[Finding]:
    processes = max(count_processes(), settings.fleet_size or 0)
    text = "with memory://, each process has its own counts, and a restart forgets them"
    fix = "set a store that processes share, such as lmdb:///var/lib/app/ratelimit or redis://localhost:6379/0"
    if processes > 1:
        yield Finding("store", f"{text}: {processes} processes allow up to {processes} times each limit", PROBLEM, fix)
    else:
        yield Finding("store", text, WARNING, f"with several processes, {fix}")


def _round_trip(times: list[float], settings: Settings) -> Finding:
    """Compare the median with the time budget of a request."""
    median, slowest, budget = statistics.median(times), max(times), settings.store_timeout / SECOND
    text = f"median {_ms(median)} of {len(times)} calls, slowest {_ms(slowest)}; store_timeout is {_ms(budget)}"
    data = {"median_ms": round(median * 1000, 3), "max_ms": round(slowest * 1000, 3), "timeout_ms": budget * 1000}
    fix = f'bring the store closer, or set store_timeout = "{max(1, round(median * 4000))}ms"'
    if median > budget:
        return Finding("round trip", f"{text}. Most requests are decided without the store", PROBLEM, fix, data)
    if median * 4 > budget:
        return Finding("round trip", f"{text}. A slow call is decided without the store", WARNING, fix, data)
    return Finding("round trip", text, data=data)


def _clock_skew(probes: list[tuple[float, float, Decision]], name: str) -> Iterator[Finding]:
    """Compare the clock of this machine with that of the servers. LMDB and Memcached use the clock of this machine."""
    if not name.startswith(("redis", "valkey", "unix", "rediss")):
        return
    _, wall, decision = min(probes, key=lambda probe: probe[0])
    skew = decision.at - wall
    text = f"the clock of the store is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    data = {"skew_s": round(skew, 3)}
    if abs(skew) < _SKEW:
        yield Finding("clock", text, data=data)
    else:
        effect = "Limits use the clock of the store, but logs and headers with times differ"
        yield Finding("clock", f"{text}. {effect}", WARNING, "synchronize both clocks with NTP", data)


def _workers(fleet: Decision, settings: Settings) -> Finding:
    """Return the number of processes that have announced themselves, or expire within ten minutes of their end."""
    seen = FLEET.limit - fleet.remaining
    data: dict[str, Any] = {"seen": seen, "fleet_size": settings.fleet_size}
    if settings.fleet_size is not None:
        return Finding("workers", f"fleet_size = {settings.fleet_size}, so processes are not counted", data=data)
    if seen:
        return Finding("workers", f"{seen} {'process uses' if seen == 1 else 'processes use'} the store", data=data)
    fix = "send a request. If this does not help, the application uses another store, or another prefix"
    return Finding("workers", "no running process of your application is known to the store", WARNING, fix, data)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
