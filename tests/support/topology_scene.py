"""Three processes send requests while a cluster changes.

After each change, the states in the servers are compared with the requests that were allowed. The clock is set by hand,
so nothing expires.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.crc import key_slot
from redis_handles import client
from redis_topology import Topology
from servers import HOST, STEADY, cluster_running, node_running
from topology_load import ACTIVE, BY_ACCOUNT, BY_ADDRESS, PROCESSES, features, load, open_limiter, requests_succeed

CLIENT_SLOTS = {key_slot(f"{k}={v}".encode()) for number in range(600) for k, v in features(number).items()}


@dataclass
class Row:
    """The counts of one change."""

    change: str
    requests: int
    allowed: int
    over: int
    exceptions: list[str]
    unavailable: int
    made: int
    lost: int
    succeeds: bool
    """Whether requests succeed after the change."""
    books: dict[str, tuple[int, int]]
    """For each limit: the cost that the servers hold, and the cost of the requests that were allowed."""


FAILOVER, KILLED = "failover", "node removed, killed at once"
WAITING = PROCESSES * (ACTIVE + 1)  # most requests at one time
MAY_FAIL = {FAILOVER: 8 * WAITING, KILLED: 2 * WAITING}
"""How many requests may fail: for each of two failovers, those of 4 s. The others have to succeed all."""


class Scene:
    """A cluster and the changes to it, in this order."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        nodes = stack.enter_context(cluster_running(folder, *STEADY))
        self.topology = Topology(nodes, [stack.enter_context(client(node)) for node in nodes])
        self.changes = {
            "reshard": self.reshard,
            FAILOVER: self.fail_over,
            "node added": self.add,
            "node removed": self.remove,
            KILLED: self.kill,  # another server, which joins before
        }

    def reshard(self) -> None:
        """Move slots of clients to the next server."""
        for source, target in ((0, 1), (1, 2), (2, 0)):
            self.topology.move(source, target, self._slots_of(source)[:20])

    def fail_over(self) -> None:
        self.topology.fail_over(1, 4)
        self.topology.fail_over(0, 3)

    def add(self) -> None:
        """A server joins and gets a quarter of the slots of all clients."""
        node = self._stack.enter_context(node_running(self._folder, *STEADY))
        self._added = self.topology.add(node, self._stack.enter_context(client(node)))
        for source in (2, 3, 4):
            self.topology.move(source, self._added, self._slots_of(source)[::4])

    def remove(self) -> None:
        """The server leaves when it has no slots and no process asks it."""
        self._drain()
        self.topology.wait_for_quiet(self._added)
        self.topology.remove(self._added)

    def kill(self) -> None:
        """The server is killed in the moment in which its last slot has moved."""
        self._drain()
        self.topology.remove(self._added)

    def _drain(self) -> None:
        self.topology.move(self._added, 3, self.topology.owned(self._added))

    def _slots_of(self, number: int) -> list[int]:
        """Return the slots of a server that clients use now or later."""
        return sorted(CLIENT_SLOTS.intersection(self.topology.owned(number)))

    def play(self, change: str) -> Row:
        alive = [self.topology.nodes[number] for number in self.topology.alive()]
        prefix = change.replace(" ", "-").replace(",", "")
        url = f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in alive)}?prefix={prefix}:"
        if change == KILLED:
            self.add()
        with load(url) as (counts, latest):
            time.sleep(0.5)
            self.changes[change]()
            succeeds = requests_succeed(latest)
        row = summed(change, url, counts, succeeds)
        for number in self.topology.alive():
            if self.topology.is_primary(number):
                self.topology.clients[number].flushall()
        return row


def summed(change: str, url: str, counts: Counter[Any], succeeds: bool) -> Row:
    allowed = {key[1]: count for key, count in counts.items() if key[0] == "client"}
    accounts = Counter[int]()
    for number, count in allowed.items():
        accounts[number // 2] += count
    over = [count - BY_ADDRESS for count in allowed.values()] + [count - BY_ACCOUNT for count in accounts.values()]
    exceptions = [f"{count} times {key[1]}" for key, count in counts.items() if key[0] == "exception"]
    total = sum(allowed.values())
    books = {name: (held, total) for name, held in held_by_servers(url, allowed).items()}
    rest = (counts["unavailable"], counts["refunds made"], counts["refunds lost"])
    return Row(change, counts["requests"], total, sum(n for n in over if n > 0), exceptions, *rest, succeeds, books)


def held_by_servers(url: str, numbers: Iterable[int]) -> dict[str, int]:
    """Return the consumed cost of each limit: that of all clients together."""
    limiter, states = open_limiter(url), dict[tuple[str, str, str], int]()
    for number in numbers:
        own = features(number)
        for decision in limiter.peek(own, cost=0).decisions:
            who = own["user" if decision.rule == "account" else "ip"]
            states[decision.rule, str(decision.quota), who] = decision.limit - decision.remaining
    limiter.close()
    held = Counter[str]()
    for (rule, quota, _), cost in states.items():
        held[f"{rule}, {quota}"] += cost
    return dict(held)


def play_all(folder: Path) -> Iterator[Row]:
    """Play each change on one cluster, and yield its counts."""
    with ExitStack() as stack:
        scene = Scene(folder, stack)
        for change in scene.changes:
            yield scene.play(change)
