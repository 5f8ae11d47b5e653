"""Findings on the servers of Redis: each primary, replica and sentinel that the store knows."""

import re
import time
from collections.abc import Iterator
from typing import Final

from ...clock import SECOND
from ...stores.facts import Facts
from .finding import PROBLEM, WARNING, Finding

_OLDEST: Final = (6, 2)
_FULL: Final = 0.9
_SKEW: Final = 3
"""Seconds, more than a reply may take."""
_POLICIES: Final = "noeviction, or volatile-ttl"
_EVICTING: Final = "{policy} evicts keys when memory is full, and a client whose key is evicted starts at zero"


def examine_server(facts: Facts) -> Iterator[Finding]:
    """Judge a primary or a replica."""
    is_replica = facts.kind == "replica"
    name = f"{'replica' if is_replica else 'server'} {facts.name}"
    if not facts.replies:
        level, fix = (WARNING if is_replica else PROBLEM), "start the server, or check the network and the login"
        yield Finding(name, f"does not reply ({facts.problem})", level, fix)
    elif facts.problem:
        fix = "give the user of the store the right +info, or look at the server yourself"
        yield Finding(name, f"version and eviction policy are not known ({facts.problem})", WARNING, fix)
    else:
        yield from _on_server(name, dict(facts.values), is_replica)


def examine_sentinel(facts: Facts) -> Iterator[Finding]:
    """Judge a sentinel by the primary that it names."""
    name, fields = f"sentinel {facts.name}", facts.values
    if facts.problem:
        fix = "start the sentinel, or remove it from the URL"
        yield Finding(name, f"does not reply ({facts.problem})", WARNING, fix)
        return
    primary, others = f"{fields['ip']}:{fields['port']}", int(fields.get("num-other-sentinels", 0))
    text = f"names the primary {primary}, flags {fields['flags']}, and knows {others} other sentinels"
    yield Finding(name, text, data={"primary": primary, "other_sentinels": others})


def examine_primary(facts: Facts) -> Iterator[Finding]:
    """Report a service whose primary no sentinel knows."""
    yield Finding("primary", f"not found ({facts.problem})", PROBLEM, "check the sentinels and the service")


def examine_cluster(facts: Facts) -> Iterator[Finding]:
    """Judge a cluster by its slots. A user without the right to ask for them has no finding."""
    state = facts.values
    if state.get("cluster_state", "ok") != "ok":
        text = f"cluster_state is {state['cluster_state']}: {state.get('cluster_slots_ok')} of 16384 slots are ok"
        yield Finding("cluster", text, PROBLEM, "start the servers of the missing slots, or promote their replicas")
    elif "cluster_state" in state:
        text = f"{state.get('cluster_size')} primaries of {state.get('cluster_known_nodes')} servers, all slots are ok"
        yield Finding("cluster", text, data={"primaries": state["primaries"]})


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


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
