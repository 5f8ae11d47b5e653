"""A cluster whose slots move, whose primaries change and that loses a server, under the load of three processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle
from typing import Any

import pytest
import redis
from redis_handles import PATIENT, client
from servers import HOST, STEADY, Server, cluster_running, wait_for

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.store import RedisStore

pytestmark = pytest.mark.slow

LIMIT, CLIENTS, SLOTS = 200, 24, 16384
RULES = [
    Rule(name="address", limits=f"{LIMIT}/day; 100000/7d", key=["ip"]),
    Rule(name="account", limits=f"{LIMIT + 50}/day", key=["user"], algorithm="gcra"),
    Rule(name="login", limits="100000/day", key=["endpoint", "ip"]),
]


def worker(url: str, stop: Any, done: Any) -> None:
    """Send requests by a thread and on a loop, until ``stop``. Report what passed and what went wrong."""
    counts, lock = Counter[str](), threading.Lock()
    stores = [open_store(url, PATIENT) for _ in range(2)]
    limiters = [Limiter(RULES, store, settings=Settings(rejection_cache=0, on_store_error="deny")) for store in stores]

    def add(number: int, verdict: Verdict) -> None:
        kinds = ["requests", f"ip {number}" if verdict else "rejected"]
        kinds += ["unavailable"] * any(decision.local for decision in verdict.decisions)
        with lock:
            counts.update(kinds)

    def guarded(run: Callable[[], object]) -> None:
        try:
            run()
        except Exception as error:
            counts[f"exception {error!r}"] += 1

    def in_thread() -> None:
        numbers = cycle(range(CLIENTS))
        while not stop.is_set():
            number = next(numbers)
            add(number, limiters[0].hit(features(number)))
        limiters[0].close()

    async def on_loop() -> None:
        while not stop.is_set():
            found = await asyncio.gather(*(limiters[1].ahit(features(number)) for number in range(CLIENTS)))
            for number, verdict in enumerate(found):
                add(number, verdict)
            await asyncio.sleep(0.001)
        await limiters[1].aclose()

    thread = threading.Thread(target=guarded, args=(in_thread,))
    thread.start()
    guarded(lambda: asyncio.run(on_loop()))
    thread.join()
    counts["lost refunds"] = sum(store.lost_refunds for store in stores if isinstance(store, RedisStore))
    done.put(dict(counts))


def features(number: int) -> dict[str, str]:
    return {"ip": f"192.0.2.{number}", "user": f"user-{number}", "endpoint": "/login"}


class Topology:
    """Changes a cluster of three primaries and their replicas."""

    def __init__(self, nodes: Sequence[Server], clients: Sequence[redis.Redis]) -> None:
        self.nodes, self.clients = list(nodes), list(clients)
        self._asks_at = 0.0

    def name(self, number: int) -> str:
        return str(self.clients[number].execute_command("CLUSTER MYID").decode())

    def owned(self, number: int) -> list[int]:
        slots: Any = self.clients[number].execute_command("CLUSTER SLOTS")
        port = self.nodes[number].port
        return [slot for first, last, (_, at, *_), *_ in slots if at == port for slot in range(first, last + 1)]

    def move_empty(self, source: int, target: int, slots: Sequence[int], everywhere: Sequence[int]) -> list[int]:
        """Move the slots without keys, and return the others."""
        count = self.clients[source].pipeline(transaction=False)
        for slot in slots:
            count.execute_command("CLUSTER COUNTKEYSINSLOT", slot)
        counts = dict(zip(slots, count.execute(), strict=True))
        for number in (target, source, *everywhere):
            assign = self.clients[number].pipeline(transaction=False)
            for slot in slots:
                if not counts[slot]:
                    assign.execute_command("CLUSTER SETSLOT", slot, "NODE", self.name(target))
            assign.execute()
        return [slot for slot in slots if counts[slot]]

    def move(self, source: int, target: int, slots: Sequence[int], everywhere: Sequence[int]) -> None:
        """Move slots, their keys one by one."""
        names = self.name(source), self.name(target)
        for slot in slots:
            self.clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
            self.clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
            while keys := self.clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
                self.clients[source].migrate(HOST, self.nodes[target].port, keys, 0, 5_000)
                time.sleep(0.005)  # some requests meet the slot half moved
            for number in (target, source, *everywhere):
                with suppress(redis.ResponseError):  # a source without slots may have become a replica
                    self.clients[number].execute_command("CLUSTER SETSLOT", slot, "NODE", names[1])

    def fail_over(self, primary: int, replica: int) -> None:
        self._asks_at = 0.0

        def has_failed_over() -> bool:
            """Ask again: an election can fail while the machine is busy."""
            roles = [self.clients[number].info("replication")["role"] for number in (replica, primary)]
            if roles[0] == "slave" and time.monotonic() > self._asks_at:
                self._asks_at = time.monotonic() + 6  # a failover that takes 5 s is given up
                with suppress(redis.ResponseError):  # it may just have become the primary
                    self.clients[replica].execute_command("CLUSTER FAILOVER")
            return roles == ["master", "slave"]

        wait_for(has_failed_over, "the failover", 120)


def test_three_processes_while_the_cluster_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Slots move, two primaries fail over, one server leaves: no client is over its limit, and no request fails."""
    context = multiprocessing.get_context("spawn")
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY) as nodes, ExitStack() as stack:
        topology = Topology(nodes, [stack.enter_context(client(node)) for node in nodes])
        url = f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in nodes[:3])}"
        stop, done = context.Event(), context.Queue()
        workers = [context.Process(target=worker, args=(url, stop, done)) for _ in range(3)]
        for each in workers:
            each.start()
        try:
            wait_for(lambda: all(topology.clients[i].dbsize() for i in range(3)), "the first requests", 60)
            topology.move(0, 1, [slot for slot in topology.owned(0) if in_use(topology, 0, slot)][:6], [2])
            topology.fail_over(1, 4)
            topology.fail_over(0, 3)
            leave(topology, 2, to=4, others=[3])
            time.sleep(1)
        finally:
            stop.set()
            counts = [Counter(done.get(timeout=60)) for _ in workers]
            for each in workers:
                each.join()
    total = sum(counts, Counter())
    print({name: count for name, count in total.items() if not name.startswith("ip ")})
    assert [name for name in total if name.startswith("exception")] == []
    assert (total["unavailable"], total["lost refunds"]) == (0, 0)
    assert max(total[f"ip {number}"] for number in range(CLIENTS)) <= LIMIT


def in_use(topology: Topology, number: int, slot: int) -> bool:
    return bool(topology.clients[number].execute_command("CLUSTER COUNTKEYSINSLOT", slot))


def is_quiet(server: redis.Redis) -> bool:
    """Return whether no process sends requests to a server, not even to learn that their slots have moved."""

    def requests() -> Any:
        stats: Any = server.info("commandstats")
        return stats.get("cmdstat_evalsha")

    before = requests()
    time.sleep(0.5)
    return bool(before == requests())


def leave(topology: Topology, number: int, to: int, others: Sequence[int]) -> None:
    """Move all slots of a server away, and stop it with its replica."""
    topology.move(number, to, topology.move_empty(number, to, topology.owned(number), others), others)
    wait_for(lambda: is_quiet(topology.clients[number]), "the processes to leave the server", 60)
    gone = [topology.name(number), topology.name(number + 3)]
    for each in (0, 1, 3, 4):
        for name in gone:
            topology.clients[each].execute_command("CLUSTER FORGET", name)
    for each in (number, number + 3):
        topology.nodes[each].kill()
