"""What ``check --connect`` finds: the replies of the store, its clock, its servers and the processes that share it."""

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
from .clients import open_limiter
from .output import Failure
from .source import Source

FACT, NOTE, PROBLEM = "facts", "notes", "problems"
"""The part of the report for a finding: a problem has an effect on limits, now or soon; a note is a risk."""
_PROBES: Final = 9
_SKEW: Final = 1.0
"""Seconds between two clocks that are a risk."""
_SERVER_SKEW: Final = 3
"""Seconds, more than a reply may take. Memcached has the time in whole seconds."""
_MIB: Final = 1 << 20
_OLDEST: Final = (6, 2)
"""The oldest version of Redis."""
_FULL: Final = 0.9
"""The share of the memory of Redis that is a problem."""
_SHARING: Final = 3 / 4
"""The share of used pages of LMDB from which new keys share states."""
_UNCLEAN: Final = "the machine stopped without a shutdown, so counts started at zero once"
_Check = tuple[Any, str, str]
"""Whether a finding applies, its kind and its text."""


class Finding(NamedTuple):
    """A fact, a note or a problem. The text of a note or a problem ends with what to do."""

    kind: str
    text: str


def examine(source: Source) -> Iterator[Finding]:
    """Connect to the store of a source, and yield what is found. No count changes."""
    try:
        with open_limiter(source, may_be_memory=True) as limiter:
            yield from examine_store(limiter, source.running_settings)
    except (RateLimitError, Failure) as error:
        yield Finding(PROBLEM, f"store: {error}")


def examine_store(limiter: Limiter, settings: Settings) -> Iterator[Finding]:
    """Yield the findings on a store. If it does not reply, only its servers are examined."""
    store, name = limiter.store, redacted_url(limiter.store)
    if not limiter.waits:
        if (processes := max(stated_workers(), settings.fleet_size or 0)) > 1:
            text = f"store: {processes} processes with {name} allow up to {processes} times each limit"
            yield Finding(PROBLEM, f"{text}. Set a store that processes share, such as redis://localhost:6379/0")
        return
    try:
        store.start()
        probes = [_probe(limiter) for _ in range(_PROBES)] if takes_slots(store) else []
        store.ping()
    except RateLimitError as error:
        text = f"store: {name} unreachable ({error}): requests are decided by on_store_error"
        yield Finding(
            PROBLEM, f"{text} = {settings.on_store_error!r}. Start the server, or correct the URL or the login"
        )
    else:
        yield Finding(FACT, f"store: {name} replies")
        if probes:
            yield _round_trip([seconds for seconds, _, _ in probes], settings.store_timeout / SECOND)
            yield from _clock_of_store(probes, store.name)
            yield _workers(probes[-1][2], settings)
    for facts in store.facts():
        yield from examine_part(facts)


def _probe(limiter: Limiter) -> tuple[float, float, Decision]:
    """Return the seconds of a call that reads a state, the time between its ends, and the decision on the fleet."""
    begin, wall = time.perf_counter(), time.time()
    [decision] = limiter.store.apply([Hit(FLEET, FLEET.prefix, 0)], None, False)
    seconds = time.perf_counter() - begin
    return seconds, wall + seconds / 2, decision


def _round_trip(times: list[float], budget: float) -> Finding:
    """Compare the median with the time budget of a request."""
    median = statistics.median(times)
    text = f"round trip: median {_ms(median)} of {len(times)} calls, slowest {_ms(max(times))}"
    text = f"{text}; store_timeout is {_ms(budget)}"
    if median * 4 <= budget:
        return Finding(FACT, text)
    which = "Most requests are" if median > budget else "A slow call is"
    fix = f'Bring the store closer, or set store_timeout = "{max(1, round(median * 4000))}ms"'
    return Finding(PROBLEM if median > budget else NOTE, f"{text}. {which} decided without the store. {fix}")


def _clock_of_store(probes: list[tuple[float, float, Decision]], name: str) -> Iterator[Finding]:
    """Compare the clock of this machine with that of Redis. LMDB and Memcached use the clock of this machine."""
    if name.startswith(("redis", "valkey", "unix", "rediss")):
        _, wall, decision = min(probes, key=lambda probe: probe[0])
        skew, effect = decision.at - wall, "Limits use the clock of the store, but logs and headers with times differ"
        text = f"clock: the store is {_apart(skew)} this machine"
        yield Finding(FACT, text) if abs(skew) < _SKEW else Finding(NOTE, f"{text}. {effect}. Set both clocks")


def _workers(fleet: Decision, settings: Settings) -> Finding:
    """Return the number of processes that have announced themselves. A process expires ten minutes after its end."""
    if settings.fleet_size is not None:
        return Finding(FACT, f"workers: fleet_size = {settings.fleet_size}, so processes are not counted")
    if seen := FLEET.limit - fleet.remaining:
        return Finding(FACT, f"workers: {seen} {'process uses' if seen == 1 else 'processes use'} the store")
    fix = "Send a request. If this does not help, the application uses another store, or another prefix"
    return Finding(NOTE, f"workers: no running process of your application is known to the store. {fix}")


class _Part(NamedTuple):
    """How a part of a store is judged: by checks of its values, or by a missing reply, with its kind and fix."""

    title: str
    checks: Callable[[Mapping[str, Any]], list[_Check]]
    silent: str
    fix: str


def examine_part(facts: Facts) -> Iterator[Finding]:
    """Judge a server, or the files of a store."""
    title, checks, silent, fix = _PARTS.get(facts.kind, (facts.kind, _own, PROBLEM, "Examine the store"))
    name = f"{title} {facts.name}".rstrip()
    if facts.problem and facts.replies and facts.kind in ("redis", "replica"):
        right = "Give the user of the store the right +info"
        yield Finding(NOTE, f"{name}: version and eviction policy are not known ({facts.problem}). {right}")
    elif facts.problem and silent:
        yield Finding(silent, f"{name}: does not reply ({facts.problem}). {fix}")
    else:
        yield from (Finding(kind, f"{name}: {text}") for applies, kind, text in checks(facts.values) if applies)


def _primary(info: Mapping[str, Any]) -> list[_Check]:
    is_replica = (info.get("role") == "slave", PROBLEM, "is a replica, which takes no writes. Name the primary")
    return [*_redis(info), is_replica]


def _redis(info: Mapping[str, Any]) -> list[_Check]:
    version = info.get("valkey_version") or info.get("redis_version", "?")
    software = "Valkey" if "valkey_version" in info else "Redis"
    used, most, evicted = (int(info.get(field, 0)) for field in ("used_memory", "maxmemory", "evicted_keys"))
    policy, share, role = info.get("maxmemory_policy", "?"), used / most if most else 0, info.get("role", "?")
    memory = f"memory {_mib(used)} {f'of {_mib(most)}' if most else 'without a bound'}, maxmemory-policy {policy}"
    evicts = bool(most) and policy not in ("noeviction", "volatile-ttl")
    effect = f"{policy} evicts keys when memory is full, and a client whose key is evicted starts at zero"
    is_old = software == "Redis" and tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST
    return [
        (True, FACT, f"{software} {version}, role {role}, {memory}, {evicted:,} keys evicted"),
        _clock(int(info.get("server_time_usec", 0)) / SECOND, "Limits use the clock of the server"),
        (is_old, PROBLEM, f"Redis {version} is not supported. Install Redis 6.2 or newer, or Valkey"),
        (
            evicts,
            PROBLEM if policy.startswith("allkeys") or evicted else NOTE,
            f"{effect}. Set maxmemory-policy to noeviction, or volatile-ttl",
        ),
        (evicted and not evicts, PROBLEM, f"{evicted:,} keys were evicted, so limits were forgotten. Raise maxmemory"),
        (share > _FULL, PROBLEM, f"{share:.0%} of the memory is used. When it is full, calls fail. Raise maxmemory"),
    ]


def _sentinel(fields: Mapping[str, Any]) -> list[_Check]:
    primary, others = f"{fields['ip']}:{fields['port']}", fields.get("num-other-sentinels", 0)
    return [(True, FACT, f"names the primary {primary}, flags {fields['flags']}, and knows {others} other sentinels")]


def _cluster(state: Mapping[str, Any]) -> list[_Check]:
    """Judge the slots. A user without the right to ask for them gets no values, and no finding."""
    is_ok, slots = state.get("cluster_state", "ok") == "ok", state.get("cluster_slots_ok")
    servers = f"{state.get('cluster_size')} primaries of {state.get('cluster_known_nodes')} servers"
    broken = f"{state.get('cluster_state')}, {slots} of 16384 slots are ok. Start the servers of the missing slots"
    return [("cluster_state" in state and is_ok, FACT, f"{servers}, all slots are ok"), (not is_ok, PROBLEM, broken)]


def _memcached(stats: Mapping[str, Any]) -> list[_Check]:
    used, most, evicted = (int(stats.get(field, 0)) for field in ("bytes", "limit_maxbytes", "evictions"))
    text = f"Memcached {stats.get('version', '?')}, memory {_mib(used)} of {_mib(most)}, {evicted:,} values evicted"
    lost = f"{evicted:,} values were evicted: their clients started at zero. Give it more memory (-m)"
    return [
        (True, FACT, text),
        _clock(int(stats.get("time", 0)), "The machines of the application decide by their own clocks"),
        (evicted, PROBLEM, lost),
        (int(stats.get("listen_disabled_num", 0)), NOTE, "had no free connections. Raise their number (-c)"),
    ]


def _clock(seconds: float, effect: str) -> _Check:
    """Compare the clock of a server, if it shows one, with that of this machine."""
    skew = seconds - time.time()
    return (seconds and abs(skew) > _SERVER_SKEW, NOTE, f"its clock is {_apart(skew)} this machine. {effect}")


def _lmdb(values: Mapping[str, Any]) -> list[_Check]:
    used, size, free = values.get("used", 0), values.get("size", 0), values.get("free", 0)
    room = f"{used / _MIB:,.1f} of {_mib(size)} are used by {values.get('entries', 0):,} keys"
    readers = f"{values.get('readers')} of {values.get('max_readers')} readers are in use"
    growth, is_full = max(0, size - values.get("allocated", 0)), used >= size * _SHARING
    disk = f"{_mib(free)} are free on the disk"
    return [
        ("used" in values, FACT, f"{room}, {readers}"),
        ("used" in values and is_full, PROBLEM, f"{room}: new clients share counts. Raise ?size="),
        ("free" in values, FACT, disk),
        (
            "free" in values and growth > free,
            NOTE,
            f"{disk}, but the file may grow by {_mib(growth)}. Free some, or lower ?size=",
        ),
        (values["set_aside"], NOTE, f"{_UNCLEAN}. Remove {values['set_aside']}"),
    ]


def _postgresql(values: Mapping[str, Any]) -> list[_Check]:
    used, most, size = values["connections"], int(values["max_connections"]), _mib(values["size"])
    text = f"PostgreSQL {values['version'].split()[0]}, the table has {size}, {used} of {most} connections are in use"
    return [
        (True, FACT, text),
        _clock(values["time"], "The clock of the server decides"),
        (used > most * 0.9, NOTE, f"{used} of {most} connections are in use. Raise max_connections, or use a pooler"),
    ]


def _own(values: Mapping[str, Any]) -> list[_Check]:
    return [(True, FACT, ", ".join(f"{name} {value}" for name, value in values.items()))]


_PARTS: Final = {
    "cluster": _Part("cluster", _cluster, "", ""),
    "lmdb": _Part("files", _lmdb, PROBLEM, ""),
    "memcached": _Part("server", _memcached, PROBLEM, "Start it. No other server takes over its keys"),
    "postgresql": _Part("server", _postgresql, PROBLEM, "Start it, or check the network and the login"),
    "primary": _Part("primary", _own, PROBLEM, "Check the sentinels and the service"),
    "redis": _Part("server", _primary, PROBLEM, "Start it, or check the network and the login"),
    "replica": _Part("replica", _redis, NOTE, "Start it, or check the network and the login"),
    "sentinel": _Part("sentinel", _sentinel, NOTE, "Start it, or remove it from the URL"),
}
"""The parts of a store, by the kind of their facts."""


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.3f} s {'ahead of' if seconds > 0 else 'behind'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
