"""Findings on each server of Memcached."""

import time
from collections.abc import Iterator
from typing import Final

from ...stores.memcached.races import as_store_error
from ...stores.memcached.store import MemcachedStore
from .finding import PROBLEM, WARNING, Finding

_SECONDS: Final = 1.5
_MOST: Final = 1 << 20
_SKEW: Final = 3
"""Seconds. Memcached has the time in whole seconds."""


def examine(store: MemcachedStore) -> Iterator[Finding]:
    """Yield findings on each server, within a bounded time for each."""
    for server in store._rendezvous.servers:
        name = f"server {server}"
        try:
            stats = _stats(store, server)
        except Exception as error:
            fix = "start the server, or check the network. No other server takes over its keys"
            yield Finding(name, f"does not reply ({as_store_error(error)})", PROBLEM, fix)
            continue
        yield from _on_server(name, stats)


def _on_server(name: str, stats: dict[str, str]) -> Iterator[Finding]:
    version, used, most = stats.get("version", "?"), int(stats.get("bytes", 0)), int(stats.get("limit_maxbytes", 0))
    evictions, skew = int(stats.get("evictions", 0)), int(stats.get("time", 0)) - time.time()
    memory = f"{used / _MOST:,.1f} of {most / _MOST:,.1f} MiB"
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


def _stats(store: MemcachedStore, server: object) -> dict[str, str]:
    """Return the reply to ``stats``, over a connection of its own."""
    clock = store._budget
    connection = store._pool._connect(server, clock.time() + _SECONDS)  # type: ignore[arg-type]
    with connection:
        connection.settimeout(_SECONDS)
        connection.sendall(b"stats\r\n")
        reply = b""
        while not reply.endswith(b"END\r\n"):
            data = connection.recv(65_536)
            if not data or len(reply) > _MOST or data.startswith((b"ERROR", b"CLIENT_ERROR")):
                raise ConnectionError("it rejects the command stats")
            reply += data
    rows = (line.decode("utf-8", "replace").split(" ", 2) for line in reply.splitlines())
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "STAT"}
