"""The findings of ``check --connect``: the store, its clock, its servers and its processes."""

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..clock import SECOND
from ..decision import Decision, Hit
from ..errors import RateLimitError
from ..limiter.limiter import Limiter
from ..limiter.remote.fleet import FLEET, stated_workers, takes_slots
from ..settings import Settings
from ..stores.base import Facts
from ..stores.url import redacted_url
from .operate import open_limiter
from .output import Failure
from .source import Source

FACT, NOTE, PROBLEM = "fact", "note", "problem"
"""The kinds of findings: a problem has an effect on limits, now or soon; a note is a risk."""
_PROBES: Final = 9
_SKEW: Final = 3
"""Seconds between two clocks that are a risk: more than a reply may take. Memcached has the time in whole seconds."""
_INFO: Final = (
    *("valkey_version", "redis_version", "role", "used_memory_human"),
    *("maxmemory_human", "maxmemory_policy", "evicted_keys"),
)
_SHOWN: Final = {
    "redis": _INFO,
    "replica": _INFO,
    "sentinel": ("ip", "port", "flags", "num-other-sentinels"),
    "cluster": ("cluster_state", "cluster_slots_ok", "cluster_size", "cluster_known_nodes"),
    "memcached": ("version", "bytes", "limit_maxbytes", "curr_items", "evictions"),
}
"""The values that are shown, by the kind of the facts. Other kinds are those of your own stores."""
Finding = tuple[str, str]
"""A fact, a note or a problem, and its text. That of a note or a problem ends with what to do."""


def examine(source: Source) -> Iterator[Finding]:
    """Connect to the store of a source, and yield what is found. No count changes."""
    try:
        with open_limiter(source, may_be_memory=True) as limiter:
            yield from examine_store(limiter, source.settings)
    except (RateLimitError, Failure) as error:
        yield PROBLEM, f"store: {error}"


def examine_store(limiter: Limiter, settings: Settings) -> Iterator[Finding]:
    """Yield the findings on a store. If it does not reply, only its servers are examined."""
    store, name, fails = limiter.store, redacted_url(limiter.store), False
    if not limiter.waits:
        if (processes := max(stated_workers(), settings.fleet_size or 0)) > 1:
            text = f"store: {processes} processes with {name} allow up to {processes} times each limit"
            yield PROBLEM, f"{text}. Set a store that processes share, such as redis://localhost:6379/0"
        return
    try:
        store.start()
        probes = [_probe(limiter) for _ in range(_PROBES)] if takes_slots(store) else []
        store.ping()
    except RateLimitError as error:
        fails = True
        effect = f"requests are decided by on_store_error = {settings.on_store_error!r}"
        fix = "Start the server, or correct the URL, the login or the rights of its user"
        yield PROBLEM, f"store: {name} failed ({error}): {effect}. {fix}"
    else:
        yield FACT, f"store: {name} replies"
        if probes:
            yield _round_trip([seconds for seconds, _ in probes], settings.store_timeout / SECOND)
            yield _workers(probes[-1][1], settings)
    parts = list(store.facts())
    for facts in parts:
        if not (fails and facts.problem and len(parts) == 1):  # the problem of the store
            yield from examine_part(facts)


def _probe(limiter: Limiter) -> tuple[float, Decision]:
    """Return the seconds of a call that reads a state, and the decision on the fleet."""
    begin = time.perf_counter()
    [decision] = limiter.store.apply([Hit(FLEET, FLEET.prefix, 0)], None, False)
    return time.perf_counter() - begin, decision


def _round_trip(times: list[float], budget: float) -> Finding:
    """Compare the median with the time budget of a request."""
    median = statistics.median(times)
    text = f"round trip: median {_ms(median)} of {len(times)} calls, slowest {_ms(max(times))}"
    text = f"{text}; store_timeout is {_ms(budget)}"
    if median * 4 <= budget:
        return FACT, text
    which = "Most requests are" if median > budget else "A slow call is"
    fix = f'Bring the store closer, or set store_timeout = "{max(1, round(median * 4000))}ms"'
    return PROBLEM if median > budget else NOTE, f"{text}. {which} decided without the store. {fix}"


def _workers(fleet: Decision, settings: Settings) -> Finding:
    """Return the number of processes that have announced themselves. A process expires ten minutes after its end."""
    if settings.fleet_size is not None:
        return FACT, f"workers: fleet_size = {settings.fleet_size}, so processes are not counted"
    if seen := FLEET.limit - fleet.remaining:
        return FACT, f"workers: {seen} {'process uses' if seen == 1 else 'processes use'} the store"
    fix = "Send a request. If this does not help, the application uses another store, or another prefix"
    return NOTE, f"workers: no running process of your application is known to the store. {fix}"


def examine_part(facts: Facts) -> Iterator[Finding]:
    """Show a server under the names of its values, and judge them.

    A part without values is a note: the store was asked before, and works without it or has a problem.
    """
    name, values = f"{facts.kind} {facts.name}".rstrip(), facts.values
    if not facts.problem and facts.kind not in _SHOWN:
        yield FACT, f"{name}: {', '.join(f'{each} {value}' for each, value in values.items())}"
    elif not facts.problem:
        shown = (f"{each} {values[each]}" for each in _SHOWN[facts.kind] if each in values)
        yield FACT, f"{name}: {', '.join(shown)}"
        yield from ((kind, f"{name}: {text}") for kind, text in _judge(facts.kind, values))
    else:
        fix = "Check the server, the network, the login and the rights of its user"
        yield NOTE, f"{name}: its state is not known ({facts.problem}). {fix}"


def _judge(kind: str, values: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a part. No two kinds give a name to different values."""
    policy = values.get("maxmemory_policy", "noeviction")
    evicted = int(values.get("evicted_keys", 0)) + int(values.get("evictions", 0))
    if kind == "redis" and values.get("role") == "slave":
        yield PROBLEM, "is a replica, which takes no writes. Name the primary"
    if values.get("cluster_state", "ok") != "ok":
        yield PROBLEM, "some of the 16,384 slots have no server. Start the servers of these slots"
    if int(values.get("maxmemory", 0)) and policy not in ("noeviction", "volatile-ttl"):
        effect = f"{policy} evicts keys when memory is full, and a client whose key is evicted starts at zero"
        is_certain = policy.startswith("allkeys") or evicted
        yield PROBLEM if is_certain else NOTE, f"{effect}. Set maxmemory-policy to noeviction, or volatile-ttl"
    elif evicted:
        yield PROBLEM, f"{evicted:,} keys were evicted, so their clients started at zero. Give it more memory"
    clock = float(values.get("time", 0)) or int(values.get("server_time_usec", 0)) / SECOND
    if clock and abs(skew := clock - time.time()) > _SKEW:
        apart = f"{abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'}"
        effect = "Limits, logs and headers with times use different clocks. Set both clocks"
        yield NOTE, f"its clock is {apart} this machine. {effect}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
