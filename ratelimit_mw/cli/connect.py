"""The findings of ``check --connect``: the store, its clock, its servers and its processes."""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

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

FACT, NOTE, PROBLEM = "facts", "notes", "problems"
"""The part of the report for a finding: a problem has an effect on limits, now or soon; a note is a risk."""
_PROBES: Final = 9
_SKEW: Final = 3
"""Seconds between two clocks that are a risk: more than a reply may take. Memcached has the time in whole seconds."""
_MIB: Final = 1 << 20
_NEARLY_FULL: Final = 3 / 4
"""The share of used pages of LMDB that is too much. At seven eighths, new keys fail."""
_REFUSED: Final = re.compile("NOPERM|permission denied|must be owner|insufficient privilege")
"""A part of the error of a server whose user lacks a right."""
Finding = tuple[str, str]
"""A fact, a note or a problem, and its text. That of a note or a problem ends with what to do."""


def examine(source: Source) -> Iterator[Finding]:
    """Connect to the store of a source, and yield what is found. No count changes."""
    try:
        with open_limiter(source, may_be_memory=True) as limiter:
            yield from examine_store(limiter, source.running_settings)
    except (RateLimitError, Failure) as error:
        yield PROBLEM, f"store: {error}"


def examine_store(limiter: Limiter, settings: Settings) -> Iterator[Finding]:
    """Yield the findings on a store. If it does not reply, only its servers are examined."""
    store, name = limiter.store, redacted_url(limiter.store)
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
        is_refused = _REFUSED.search(str(error))
        fix = "Give its user this right" if is_refused else "Start the server, or correct the URL or the login"
        text = f"store: {name} {'rejects the calls' if is_refused else 'unreachable'} ({error})"
        yield PROBLEM, f"{text}: requests are decided by on_store_error = {settings.on_store_error!r}. {fix}"
    else:
        yield FACT, f"store: {name} replies"
        if probes:
            yield _round_trip([seconds for seconds, _ in probes], settings.store_timeout / SECOND)
            yield _workers(probes[-1][1], settings)
    for facts in store.facts():
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


class _Part(NamedTuple):
    """How a part of a store is judged: by its values, or by a missing reply. ``right`` is needed to see the values."""

    title: str
    judge: Callable[[Mapping[str, Any]], Iterator[Finding]]
    silent: str = PROBLEM
    fix: str = "Start it, or check the network and the login"
    right: str = ""


def examine_part(facts: Facts) -> Iterator[Finding]:
    """Judge a server, or the files of a store."""
    part = _PARTS.get(facts.kind, _Part(facts.kind, _own, fix="Examine the store"))
    name = f"{part.title} {facts.name}".rstrip()
    if not facts.problem:
        yield from ((kind, f"{name}: {text}") for kind, text in part.judge(facts.values))
    elif facts.replies and part.right:
        right = f"Give the user of the store the right {part.right}"
        yield NOTE, f"{name}: its state is not known ({facts.problem}). {right}"
    elif part.silent:
        yield part.silent, f"{name}: does not reply ({facts.problem}). {part.fix}"


def _own(values: Mapping[str, Any]) -> Iterator[Finding]:
    yield FACT, ", ".join(f"{name} {value}" for name, value in values.items())


def _primary(info: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _redis(info)
    if info.get("role") == "slave":
        yield PROBLEM, "is a replica, which takes no writes. Name the primary"


def _redis(info: Mapping[str, Any]) -> Iterator[Finding]:
    version = info.get("valkey_version") or info.get("redis_version", "?")
    software = f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}"
    used, most, evicted = (int(info.get(field, 0)) for field in ("used_memory", "maxmemory", "evicted_keys"))
    policy = info.get("maxmemory_policy", "?")
    memory = f"memory {_mib(used)} {f'of {_mib(most)}' if most else 'without a bound'}, maxmemory-policy {policy}"
    yield FACT, f"{software}, role {info.get('role', '?')}, {memory}, {evicted:,} keys evicted"
    yield from _clock(int(info.get("server_time_usec", 0)) / SECOND)
    if most and policy not in ("noeviction", "volatile-ttl"):
        effect = f"{policy} evicts keys when memory is full, and a client whose key is evicted starts at zero"
        kind = PROBLEM if policy.startswith("allkeys") or evicted else NOTE
        yield kind, f"{effect}. Set maxmemory-policy to noeviction, or volatile-ttl"
    elif evicted:
        yield PROBLEM, f"{evicted:,} keys were evicted, so limits were forgotten. Raise maxmemory"


def _sentinel(fields: Mapping[str, Any]) -> Iterator[Finding]:
    primary, others = f"{fields['ip']}:{fields['port']}", fields.get("num-other-sentinels", 0)
    yield FACT, f"names the primary {primary}, flags {fields['flags']}, and knows {others} other sentinels"


def _cluster(state: Mapping[str, Any]) -> Iterator[Finding]:
    slots = state.get("cluster_slots_ok")
    if state.get("cluster_state") == "ok":
        yield FACT, f"{state['cluster_size']} primaries of {state['cluster_known_nodes']} servers, all slots are ok"
    elif state:  # a user without the right to ask gets no values
        text = f"{state['cluster_state']}, {slots} of 16384 slots are ok"
        yield PROBLEM, f"{text}. Start the servers of the missing slots"


def _memcached(stats: Mapping[str, Any]) -> Iterator[Finding]:
    used, most, evicted = (int(stats.get(field, 0)) for field in ("bytes", "limit_maxbytes", "evictions"))
    yield (
        FACT,
        f"Memcached {stats.get('version', '?')}, memory {_mib(used)} of {_mib(most)}, {evicted:,} values evicted",
    )
    yield from _clock(int(stats.get("time", 0)))
    if evicted:
        yield PROBLEM, f"{evicted:,} values were evicted: their clients started at zero. Give it more memory (-m)"


def _lmdb(values: Mapping[str, Any]) -> Iterator[Finding]:
    used, size, free = values.get("used"), values.get("size", 0), values.get("free")
    if used is not None:
        room = f"{used / _MIB:,.1f} of {_mib(size)} are used by {values['entries']:,} keys"
        room = f"{room}, {values['readers']} of {values['max_readers']} readers are in use"
        yield FACT, room
        if used >= size * _NEARLY_FULL:
            yield PROBLEM, f"{room}: when it is full, new clients fail. Raise ?size="
    if free is not None:
        yield FACT, f"{_mib(free)} are free on the disk"
        if (growth := size - values.get("allocated", 0)) > free:
            yield NOTE, f"{_mib(free)} are free on the disk, but the file may grow by {_mib(growth)}. Lower ?size="
    if values["set_aside"]:
        effect = "the machine stopped without a shutdown, so counts started at zero once"
        yield NOTE, f"{effect}. Remove {values['set_aside']}"


def _postgresql(values: Mapping[str, Any]) -> Iterator[Finding]:
    connections = f"{values['connections']} of {values['max_connections']} connections are in use"
    yield FACT, f"PostgreSQL {values['version'].split()[0]}, the table has {_mib(values['size'])}, {connections}"
    yield from _clock(values["time"])


def _clock(seconds: float) -> Iterator[Finding]:
    """Compare the clock of a server, if it shows one, with that of this machine."""
    if seconds and abs(skew := seconds - time.time()) > _SKEW:
        apart = f"{abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'}"
        effect = "Limits, logs and headers with times use different clocks. Set both clocks"
        yield NOTE, f"its clock is {apart} this machine. {effect}"


_PARTS: Final = {
    "redis": _Part("server", _primary, right="+info"),
    "replica": _Part("replica", _redis, NOTE, right="+info"),
    "primary": _Part("primary", _own, fix="Check the sentinels and the service"),
    "sentinel": _Part("sentinel", _sentinel, NOTE, "Start it, or remove it from the URL"),
    "cluster": _Part("cluster", _cluster, ""),
    "memcached": _Part("server", _memcached, fix="Start it. No other server takes over its keys"),
    "lmdb": _Part("files", _lmdb),
    "postgresql": _Part("server", _postgresql, right="to use its table"),
}
"""The parts of a store, by the kind of their facts."""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
