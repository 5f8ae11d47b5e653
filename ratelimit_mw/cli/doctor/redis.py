"""Findings on the servers of Redis: each primary, replica and sentinel that the store knows."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from redis import ResponseError

from ...clock import SECOND
from ...stores.redis.address import Address
from ...stores.redis.client.application import ApplicationClient
from ...stores.redis.client.cluster import Cluster
from ...stores.redis.client.connection import run_blocking
from ...stores.redis.client.errors import as_store_error
from ...stores.redis.client.server import Server, call, find_primary
from ...stores.redis.store import RedisStore
from .finding import PROBLEM, WARNING, Finding

_SECONDS: Final = 1.5
"""The longest time that one server may take."""
_OLDEST: Final = (6, 2)
_FULL: Final = 0.9
_SKEW: Final = 3
"""Seconds, more than a reply may take."""
_FIELD: Final = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)
_POLICIES: Final = "noeviction, or volatile-ttl"
_EVICTING: Final = "{policy} evicts keys when memory is full, and a client whose key is evicted starts at zero"

Location = tuple[str, int]


def examine(store: RedisStore) -> Iterator[Finding]:
    """Yield findings on each server, within a bounded time for each."""
    target = store._blocking.target
    if isinstance(target, Cluster):
        yield from _examine_cluster(target)
    elif isinstance(target, Server):
        yield from _examine_address(target)
    elif isinstance(target, ApplicationClient):
        with suppress(Exception):
            info = target._client.info()
            yield from _on_server(target.name, {name: str(value) for name, value in info.items()})


def _examine_address(target: Server) -> Iterator[Finding]:
    address = target._address
    if not address.service:
        yield from _examine_server(target, address, target._location)
        return
    for location in address.hosts:
        name = f"sentinel {_text(location)}"
        try:
            reply = _ask(target, address.sentinels, location, b"SENTINEL", b"MASTER", address.service.encode())
        except Exception as error:
            fix = "start the sentinel, or remove it from the URL"
            yield Finding(name, f"does not reply ({as_store_error(error)})", WARNING, fix)
            continue
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        primary = f"{fields[b'ip'].decode()}:{fields[b'port'].decode()}"
        others = int(fields.get(b"num-other-sentinels", 0))
        text = f"names the primary {primary}, flags {fields[b'flags'].decode()}, and knows {others} other sentinels"
        yield Finding(name, text, data={"primary": primary, "other_sentinels": others})
    try:
        announced = run_blocking(find_primary(address, target._transport, _deadline(target)))
    except Exception as error:
        yield Finding("primary", f"not found ({as_store_error(error)})", PROBLEM, "check the sentinels and the service")
    else:
        yield from _examine_server(target, address, address.locate(*announced))


def _examine_cluster(target: Cluster) -> Iterator[Finding]:
    slots, primaries = target._slots, set(target._slots._primaries)
    state: dict[str, str] = {}
    for location in sorted(slots.locations()):
        yield from _examine_server(target, target._address, location, is_replica=location not in primaries)
        if not state:
            with suppress(Exception):
                state = _fields(_ask(target, target._address, location, b"CLUSTER", b"INFO"))
    if state and state.get("cluster_state") != "ok":
        text = f"cluster_state is {state.get('cluster_state')}: {state.get('cluster_slots_ok')} of 16384 slots are ok"
        yield Finding("cluster", text, PROBLEM, "start the servers of the missing slots, or promote their replicas")
    elif state:
        text = f"{state.get('cluster_size')} primaries of {state.get('cluster_known_nodes')} servers, all slots are ok"
        yield Finding("cluster", text, data={"primaries": len(primaries)})


def _examine_server(target: Any, address: Address, location: Location, is_replica: bool = False) -> Iterator[Finding]:
    name = f"{'replica' if is_replica else 'server'} {address.path or _text(location)}"
    try:
        info = _fields(_ask(target, address, location, b"INFO"))
    except ResponseError as error:
        fix = "give the user of the store the right +info, or look at the server yourself"
        yield Finding(name, f"version and eviction policy are not known ({error})", WARNING, fix)
    except Exception as error:
        level, fix = (WARNING if is_replica else PROBLEM), "start the server, or check the network and the login"
        yield Finding(name, f"does not reply ({as_store_error(error)})", level, fix)
    else:
        yield from _on_server(name, info, is_replica)


def _on_server(name: str, info: dict[str, str], is_replica: bool = False) -> Iterator[Finding]:
    """Yield the version, the memory and the role of a server."""
    software = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy, evicted = info.get("maxmemory_policy", "?"), int(info.get("evicted_keys", 0))
    memory = f"{_mib(used)} of {_mib(most)}" if most else f"{_mib(used)} without a bound"
    data = {"version": version, "role": info.get("role"), "used_memory": used, "maxmemory": most}
    data |= {"maxmemory_policy": policy, "evicted": evicted}
    text = f"{software} {version}, role {info.get('role', '?')}, memory {memory}, maxmemory-policy {policy}"
    yield Finding(name, f"{text}, {evicted:,} keys evicted", data=data)
    yield from _on_clock(name, info)
    if software == "Redis" and _numbers(version) < _OLDEST:
        yield Finding(name, f"Redis {version} is not supported", PROBLEM, "install Redis 6.2 or newer, or Valkey")
    if info.get("role") == "slave" and not is_replica:
        fix = "name the primary in the URL, or use redis+sentinel:// or redis+cluster://"
        yield Finding(name, "this is a replica, which takes no writes", PROBLEM, fix)
    if most and policy not in ("noeviction", "volatile-ttl"):
        level = PROBLEM if policy.startswith("allkeys") or evicted else WARNING
        yield Finding(name, _EVICTING.format(policy=policy), level, f"set maxmemory-policy to {_POLICIES}")
    elif evicted:
        yield Finding(name, f"{evicted:,} keys were evicted, so limits were forgotten", PROBLEM, "raise maxmemory")
    if most and used > most * _FULL:
        effect = "calls fail when it is full" if policy == "noeviction" else "keys are evicted when it is full"
        yield Finding(name, f"{used / most:.0%} of the memory is used: {effect}", PROBLEM, "raise maxmemory")


def _on_clock(name: str, info: dict[str, str]) -> Iterator[Finding]:
    """Compare the clock of a server, which Redis has shown since version 7, with that of this machine."""
    skew = int(info.get("server_time_usec", 0)) / SECOND - time.time()
    if "server_time_usec" in info and abs(skew) > _SKEW:
        text = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
        yield Finding(name, text, WARNING, "synchronize all clocks with NTP", {"skew_s": round(skew, 1)})


def _ask(target: Any, address: Address, location: Location, *command: bytes) -> Any:
    """Return the reply of one server, over a connection of its own."""
    pool = target._transport.open(address, *location)
    try:
        return run_blocking(call(pool, command, _deadline(target)))
    finally:
        pool.close()


def _deadline(target: Any) -> float:
    return float(target._transport.time()) + _SECONDS


def _fields(reply: bytes) -> dict[str, str]:
    return dict(_FIELD.findall(reply.decode("utf-8", "replace")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _text(location: Location) -> str:
    host, port = location
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
