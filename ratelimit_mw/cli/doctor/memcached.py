"""Findings on each server of Memcached."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...stores.facts import Facts
from .finding import PROBLEM, WARNING, Finding

_MIB: Final = 1 << 20
_SKEW: Final = 3
"""Seconds. Memcached has the time in whole seconds."""


def examine_memcached(facts: Facts) -> Iterator[Finding]:
    """Judge one server."""
    name = f"server {facts.name}"
    if facts.problem:
        fix = "start the server, or check the network. No other server takes over its keys"
        yield Finding(name, f"does not reply ({facts.problem})", PROBLEM, fix)
    else:
        yield from _on_server(name, facts.values)


def _on_server(name: str, stats: Mapping[str, Any]) -> Iterator[Finding]:
    version, used, most = stats.get("version", "?"), int(stats.get("bytes", 0)), int(stats.get("limit_maxbytes", 0))
    evictions, skew = int(stats.get("evictions", 0)), int(stats.get("time", 0)) - time.time()
    memory = f"{used / _MIB:,.1f} of {most / _MIB:,.1f} MiB"
    data = {"version": version, "used_memory": used, "maxmemory": most, "evicted": evictions}
    yield Finding(name, f"Memcached {version}, memory {memory}, {evictions:,} values evicted", data=data)
    if evictions:
        fix = "give it more memory (-m), or use a Memcached only for the limits"
        yield Finding(name, f"{evictions:,} values were evicted: their clients started at zero", PROBLEM, fix)
    if abs(skew) > _SKEW and stats.get("time"):
        text = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine"
        effect = "The machines of the application decide by their own clocks, which must agree"
        yield Finding(name, f"{text}. {effect}", WARNING, "synchronize all clocks with NTP", {"skew_s": round(skew)})
    if int(stats.get("listen_disabled_num", 0)):
        yield Finding(name, "it had no free connections", WARNING, "raise its number of connections (-c)")
