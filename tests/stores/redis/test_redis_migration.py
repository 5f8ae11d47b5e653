"""A slot of a cluster that moves to another server while it is hit: no request fails, and no hit is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis_handles import hit, limit_of
from servers import HOST, Server

from ratelimit_mw.decision import Hit
from ratelimit_mw.receipt import Correction
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.stores.redis.client.cluster import slot_of

pytestmark = pytest.mark.thorough

CLIENTS = [f"ip=192.0.2.{i}" for i in range(20)]
LIMIT, TRIES = 40, 60


class Move(threading.Thread):
    """Moves the slot of a prefix from the server that has it to another: as a thread, one key after another."""

    def __init__(self, nodes: list[Server], prefix: str) -> None:
        super().__init__(daemon=True)
        self.slot = slot_of(prefix.encode())
        self.primaries = [redis.Redis(host=HOST, port=node.port) for node in nodes[:3]]
        self.names = {each: each.execute_command("CLUSTER MYID").decode() for each in self.primaries}

    def run(self) -> None:
        self.begin()
        while keys := self.source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 1):
            self.move(keys[0])
            time.sleep(0.01)  # some hits meet the slot half moved
        self.end()

    def begin(self) -> None:
        self.source = next(each for each in self.primaries if self.count(each))
        self.target = next(each for each in self.primaries if each is not self.source)
        self.target.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", self.names[self.source])
        self.source.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", self.names[self.target])

    def move(self, key: bytes | str) -> None:
        self.source.migrate(HOST, self.target.connection_pool.connection_kwargs["port"], key, 0, 5_000)

    def end(self) -> None:
        for each in (self.target, self.source, *self.primaries):
            each.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self.names[self.target])
        self.arrived = self.count(self.target)
        for each in self.primaries:
            each.close()

    def count(self, server: redis.Redis) -> int:
        return int(server.execute_command("CLUSTER COUNTKEYSINSLOT", self.slot))


def opened(nodes: list[Server], prefix: str) -> Store:
    return open_store(f"redis+cluster://{HOST}:{nodes[0].port}?prefix={prefix}", 10_000_000)


def test_threads_that_hit_a_moving_slot(nodes: list[Server]) -> None:
    """Of 60 tries on each of 20 keys, by four threads while the slot moves, exactly 40 pass; none is an error."""
    store, passed, limit = opened(nodes, "{threads}:"), Counter[str](), limit_of(f"{LIMIT}/day")
    move = Move(nodes, "{threads}:")

    def tries(_: int) -> list[str]:
        found = [text for _ in range(TRIES // 4 - 1) for text in CLIENTS if store.apply([hit(limit, text)])[0].allowed]
        move.join()
        return found + [text for text in CLIENTS if store.apply([hit(limit, text)])[0].allowed]

    passed.update(text for text in CLIENTS if store.apply([hit(limit, text)])[0].allowed)
    with ThreadPoolExecutor(4) as pool:
        move.start()
        for found in pool.map(tries, range(4)):
            passed.update(found)
    assert passed == dict.fromkeys(CLIENTS, LIMIT)
    assert move.arrived == len(CLIENTS)
    store.close()


def test_a_loop_that_hits_a_moving_slot(nodes: list[Server]) -> None:
    """The same for requests that share calls: one whose keys are here and there is asked one by one."""
    store, passed, limit = opened(nodes, "{loop}:"), Counter[str](), limit_of(f"{LIMIT}/day")
    move = Move(nodes, "{loop}:")

    async def some(new: int) -> None:
        hits: list[Hit] = [hit(limit, text) for text in CLIENTS]
        hits += [hit(limit, f"ip=198.51.100.{new}")]  # a key that is nowhere yet
        found = await asyncio.gather(*(store.aapply([one]) for one in hits))
        passed.update(text for text, decisions in zip(CLIENTS, found, strict=False) if decisions[0].allowed)

    async def run() -> None:
        await some(0)
        move.start()
        for i in range(1, TRIES):
            await some(i)
            if i % 10 == 0:
                await asyncio.sleep(0.03)
        while move.is_alive():
            await some(TRIES)
        await store.aclose()

    asyncio.run(run())
    move.join()
    assert passed == dict.fromkeys(CLIENTS, LIMIT)
    assert move.arrived > len(CLIENTS)


def test_keys_of_one_request_on_both_sides_of_a_move(nodes: list[Server]) -> None:
    """Several limits in one slot, one of whose keys has moved: each key is asked at its server, all or nothing."""
    store, prefix = opened(nodes, "{both}:"), "{both}:"
    hits = [hit(limit_of("5/hour")), hit(limit_of("6/hour"))]
    store.apply(hits)
    move = Move(nodes, prefix)
    move.begin()
    move.move(prefix + hits[0].key)
    assert [decision.remaining for decision in store.apply(hits)] == [3, 4]
    assert [(d.allowed, d.remaining) for d in store.apply([hits[0], hits[1]._replace(cost=9)])] == [
        (True, 3),
        (False, 4),
    ]
    store.correct([Correction(one.limit, one.key, 1, None) for one in hits])
    assert [store.apply([one._replace(cost=0)])[0].remaining for one in hits] == [2, 3]
    move.move(prefix + hits[1].key)
    move.end()
    assert [decision.remaining for decision in store.apply(hits)] == [1, 2]
    store.close()
