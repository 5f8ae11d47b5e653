"""Leases of several processes on real stores: the limit holds, even when processes are killed."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from servers import HOST, Server

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

pytestmark = pytest.mark.slow

SPAWN, FORK = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
NOW = 1_767_268_820_500_000
WHO = {"ip": "192.0.2.7"}
SHARE = 50


def limiter_of(place: str, name: str, lease: str | None = "5%") -> Limiter:
    """1,000 in a day that stands still, drawn by 50, on a store for which a busy machine may take its time."""
    settings = Settings(store_timeout="20s", on_store_error="deny", rejection_cache=0)
    return Limiter([Rule(name=name, limits="1000/day", lease=lease)], place, lambda: NOW, settings)


def work(place: str, name: str, pipe: Connection) -> None:
    """Make as many hits as told, say how many passed, and close when told nothing."""
    limiter = limiter_of(place, name)
    while tries := pipe.recv():
        pipe.send(sum(limiter.hit(WHO).allowed for _ in range(tries)))
    limiter.close()


class Worker:
    """A process with a limiter of its own."""

    def __init__(self, place: str, name: str) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=work, args=(place, name, theirs))
        self.process.start()

    def passed(self) -> int:
        assert self.pipe.poll(200)
        return int(self.pipe.recv())

    def end(self) -> None:
        self.pipe.send(None)
        self.process.join(200)
        assert self.process.exitcode == 0


@contextmanager
def workers(place: str, name: str, count: int) -> Iterator[list[Worker]]:
    found = [Worker(place, name) for _ in range(count)]
    try:
        yield found
    finally:
        for worker in found:
            worker.process.kill()
            worker.process.join()


@pytest.fixture(params=["redis", "lmdb", pytest.param("memcached", marks=pytest.mark.thorough)])
def place(request: Any, tmp_path: Path, redis_server: Server, memcached_server: Server) -> str:
    """The address of a real store."""
    if request.param == "lmdb":
        return f"lmdb://{tmp_path / 'states'}?size=64MiB"
    server = redis_server if request.param == "redis" else memcached_server
    return f"{request.param}://{HOST}:{server.port}"


def test_a_killed_process_loses_its_lease(place: str) -> None:
    """One of four processes is killed with a lease: its share is lost, all else is allowed, nothing twice."""
    name = f"killed-{time.time_ns()}"
    with workers(place, name, 4) as (victim, *others):
        victim.pipe.send(10)
        assert victim.passed() == 10  # one alone, then nine of a share
        victim.process.kill()
        for worker in others:
            worker.pipe.send(1_000)
        passed = 10 + sum(worker.passed() for worker in others)
        lost = SHARE - 9
        assert 1_000 - lost - 3 * SHARE <= passed <= 1_000 - lost
        for worker in others:
            worker.end()
    last = limiter_of(place, name, lease=None)
    passed += sum(last.hit(WHO).allowed for _ in range(4 * SHARE))
    last.close()
    assert passed == 1_000 - lost


def test_a_forked_child_has_no_leases_of_its_parent(place: str) -> None:
    """After a fork, parent and child must not both consume one share."""
    name = f"forked-{time.time_ns()}"
    limiter = limiter_of(place, name)
    passed = sum(limiter.hit(WHO).allowed for _ in range(10))
    mine, theirs = FORK.Pipe()
    child = FORK.Process(target=lambda: theirs.send(sum(limiter.hit(WHO).allowed for _ in range(1_000))))
    child.start()
    assert mine.poll(200)
    passed += mine.recv()
    child.join()
    passed += sum(limiter.hit(WHO).allowed for _ in range(1_000))
    limiter.close()
    assert 1_000 - SHARE <= passed <= 1_000
