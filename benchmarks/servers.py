"""Redis servers of a benchmark on loopback, which tests/support/servers.py starts, and their counters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from servers import HOST, STEADY, Server, cluster_running, redis_running

from benchmarks.timing import Counters

SCRIPTS = ("eval", "evalsha", "fcall")


class Node:
    """One server and a connection to it."""

    def __init__(self, server: Server, is_in_cluster: bool) -> None:
        self.port = server.port
        self.client: Any = redis.Redis(HOST, server.port)
        if is_in_cluster:
            self.client.readonly()  # the keys of a replica can be read, to measure them

    def counters(self) -> Counters:
        info = self.client.info("cpu", "stats", "commandstats")
        calls = sum(info.get(f"cmdstat_{name}", {}).get("calls", 0) for name in SCRIPTS)
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        copied = {name: info.get(f"total_net_repl_{name}_bytes", 0) for name in ("input", "output")}
        received, sent = (info[f"total_net_{name}_bytes"] - copied[name] for name in copied)
        return Counters(cpu, calls, received, sent, sum(copied.values()))

    def contents(self) -> dict[str, int]:
        """Connections of clients, keys and memory. A key takes its entry in the tables of the server, too."""
        info = self.client.info("clients", "memory")
        usages = [self.client.memory_usage(key) for _ in range(50) if (key := self.client.randomkey()) is not None]
        sizes = [size for size in usages if size is not None]
        return {
            "connections": info["connected_clients"] - 1,
            "keys": self.client.dbsize(),
            "memory": info["used_memory"],
            "memory_per_key": round(sum(sizes) / len(sizes)) if sizes else 0,
        }


class Nodes:
    """The servers of one store: one server, or a cluster with or without replicas."""

    def __init__(self, nodes: Sequence[Node], primaries: int) -> None:
        self.primaries, self.replicas = nodes[:primaries], nodes[primaries:]
        self.all = nodes
        scheme = "redis" if len(nodes) == 1 else "redis+cluster"
        self.url = f"{scheme}://{','.join(f'{HOST}:{node.port}' for node in self.primaries)}"
        self.port = nodes[0].port

    def counters(self) -> Counters:
        """The sum of all servers."""
        return sum((node.counters() for node in self.all), Counters())


@contextmanager
def redis_nodes(primaries: int = 1, replicas: int = 0) -> Iterator[Nodes]:
    """Run one Redis, or a cluster with ``replicas`` of each of its ``primaries``. Nothing is kept on disk."""
    is_cluster = primaries * (1 + replicas) > 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if is_cluster:
            running = cluster_running(folder, *STEADY, primaries=primaries, replicas=replicas)
            servers = stack.enter_context(running)
        else:
            servers = [stack.enter_context(redis_running(folder))]
        nodes = [Node(server, is_cluster) for server in servers]
        for node in nodes:
            stack.callback(node.client.close)
        yield Nodes(nodes, primaries)
