"""Changes of a running cluster: slots that move, failovers, servers that join and leave."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from servers import HOST, Server, meet, wait_for

PAUSE = 0.005  # seconds between two keys of a slot, so that some requests find the slot half moved


def port_at(server: redis.Redis, number: int) -> int:
    """The port of the primary that has a slot, by the map of a server."""
    slots: Any = server.execute_command("CLUSTER SLOTS")
    return next(int(port) for first, last, (_, port, *_), *_ in slots if first <= number <= last)


class Topology:
    """A cluster of three primaries and their replicas. Servers are numbered in this order, new ones after them."""

    def __init__(self, nodes: Sequence[Server], clients: Sequence[redis.Redis]) -> None:
        self.nodes, self.clients = list(nodes), list(clients)
        self._asks_at = 0.0

    def name(self, number: int) -> str:
        return str(self.clients[number].execute_command("CLUSTER MYID").decode())

    def alive(self) -> list[int]:
        return [number for number, node in enumerate(self.nodes) if not node.ended()]

    def is_primary(self, number: int) -> bool:
        return self.clients[number].info("replication")["role"] == "master"

    def owned(self, number: int) -> list[int]:
        """Return the slots of a server."""
        slots: Any = self.clients[number].execute_command("CLUSTER SLOTS")
        port = self.nodes[number].port
        return [slot for first, last, (_, at, *_), *_ in slots if at == port for slot in range(first, last + 1)]

    def move(self, source: int, target: int, slots: Sequence[int]) -> None:
        """Move slots, one after another, and their keys one by one."""
        names = [self.name(number) for number in (source, target)]
        others = [number for number in self.alive() if number not in (source, target) and self.is_primary(number)]
        for slot in slots:
            self.clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
            self.clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
            while keys := self.clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
                self.clients[source].migrate(HOST, self.nodes[target].port, keys, 0, 5_000)
                time.sleep(PAUSE)
            for number in (target, source, *others):
                with suppress(redis.ResponseError):  # a source without slots becomes a replica
                    self.clients[number].execute_command("CLUSTER SETSLOT", slot, "NODE", names[1])

    def fail_over(self, primary: int, replica: int) -> None:
        self._asks_at = 0.0

        def has_failed_over() -> bool:
            """Ask again: an election can fail while the machine is busy."""
            roles = self.is_primary(replica), self.is_primary(primary)
            if not roles[0] and time.monotonic() > self._asks_at:
                self._asks_at = time.monotonic() + 6  # a failover that takes 5 s is given up
                with suppress(redis.ResponseError):  # it may just have become the primary
                    self.clients[replica].execute_command("CLUSTER FAILOVER")
            return roles == (True, False)

        wait_for(has_failed_over, "the failover", 120)

    def add(self, node: Server, client: redis.Redis) -> int:
        """Make a server join, as a primary without slots. Return its number."""
        meet(self.clients[self.alive()[0]], node)
        self.nodes.append(node)
        self.clients.append(client)
        number, everyone = len(self.nodes) - 1, len(self.alive())

        def is_known() -> bool:
            infos: list[Any] = [self.clients[each].execute_command("CLUSTER INFO") for each in self.alive()]
            return {int(info["cluster_known_nodes"]) for info in infos} == {everyone} and infos[-1][
                "cluster_state"
            ] == "ok"

        wait_for(is_known, "the cluster to know the new server")
        return number

    def remove(self, *numbers: int) -> None:
        """Kill servers without slots, and make the others forget them."""
        gone = [self.name(number) for number in numbers]
        for number in numbers:
            self.nodes[number].kill()
        for number in self.alive():
            for name in gone:
                with suppress(redis.ResponseError):  # a server that is not known
                    self.clients[number].execute_command("CLUSTER FORGET", name)

    def wait_for_quiet(self, number: int) -> None:
        """Wait until no process sends requests to a server, not even to learn that their slots have moved."""
        wait_for(lambda: self._is_quiet(number), "the processes to leave the server")

    def _is_quiet(self, number: int) -> bool:
        def requests() -> Any:
            stats: Any = self.clients[number].info("commandstats")
            return stats.get("cmdstat_evalsha")

        before = requests()
        time.sleep(0.5)
        return bool(before == requests())
