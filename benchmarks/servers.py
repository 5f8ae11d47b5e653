"""Redis servers of a benchmark on loopback, and their counters. They are stopped by process id."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from benchmarks.timing import Counters, MissingError

HOST = "127.0.0.1"
SLOTS = 16384
PATIENCE = 60.0  # seconds until the servers must be ready
PORTS = range(10_000, 12_000)  # below the ports that the system gives to clients
STEADY = ("--cluster-node-timeout", "15000", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
SCRIPTS = ("eval", "evalsha", "fcall")


@dataclass
class Node:
    """One server and a connection to it."""

    port: int
    bus: int
    process: subprocess.Popen[bytes]
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = redis.Redis(HOST, self.port)

    def is_open(self) -> bool:
        if self.process.poll() is not None:
            raise ChildProcessError
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        count = primaries * (1 + replicas)
        nodes = [stack.enter_context(_redis(folder, is_cluster=count > 1)) for _ in range(count)]
        if count > 1:
            _join(nodes, primaries)
        yield Nodes(nodes, primaries)


@contextmanager
def _redis(folder: Path, is_cluster: bool) -> Iterator[Node]:
    node = _started(folder, is_cluster)
    try:
        yield node
    finally:
        node.client.close()
        node.process.kill()
        node.process.wait()


def _started(folder: Path, is_cluster: bool) -> Node:
    """Start a Redis on a free port, or on another port when a process took the first one."""
    program = shutil.which("redis-server")
    if program is None:
        raise MissingError("redis-server is not installed: apt-get install redis-server")
    for _ in range(10):
        port, bus = free_port(), free_port()
        command = [program, "--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        if is_cluster:
            command += ["--cluster-enabled", "yes", "--cluster-port", str(bus), *STEADY]
            command += ["--cluster-config-file", f"nodes-{port}.conf"]
        node = Node(port, bus, subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL))
        try:
            _wait_for(node.is_open)
        except ChildProcessError:
            continue
        except BaseException:
            node.process.kill()
            raise
        return node
    raise ChildProcessError(f"a Redis ends when it starts: {' '.join(command)}")


def free_port() -> int:
    """Return a port without a listener."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as listener:
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            return port


def _join(nodes: Sequence[Node], primaries: int) -> None:
    """Make a cluster: spread the slots over the primaries, and give each its share of the other servers."""
    for i, node in enumerate(nodes[:primaries]):
        first, last = SLOTS * i // primaries, SLOTS * (i + 1) // primaries - 1
        node.client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
    for node in nodes[1:]:
        nodes[0].client.execute_command("CLUSTER MEET", HOST, node.port, node.bus)
    names = [node.client.execute_command("CLUSTER MYID") for node in nodes[:primaries]]
    for i, node in enumerate(nodes[primaries:]):
        _wait_for(lambda node=node, name=names[i % primaries]: _replicates(node, name))
        node.client.execute_command("READONLY")  # its keys can be read, to measure them
    _wait_for(lambda: all(_is_whole(node) for node in nodes))


def _replicates(node: Node, primary: bytes) -> bool:
    try:
        return bool(node.client.execute_command("CLUSTER REPLICATE", primary))
    except redis.ResponseError:  # they do not know each other yet
        return False


def _is_whole(node: Node) -> bool:
    state, links = node.client.execute_command("CLUSTER INFO"), node.client.info("replication")
    return state["cluster_state"] == "ok" and links.get("master_link_status", "up") == "up"


def _wait_for(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"the Redis servers are not ready after {PATIENCE:.0f} s")
        time.sleep(0.01)
