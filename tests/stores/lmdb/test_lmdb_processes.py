"""The LMDB store under real processes: exact together, killed and forked."""

import asyncio
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from lmdb_kit import FORK, PATIENT, SPAWN, decide_on, end, hit, limit_of, open_at, passed, start

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Hit
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.lmdb.store import LmdbStore

pytestmark = pytest.mark.slow


async def passed_on_a_loop(store: LmdbStore, limit: Limit, tries: int) -> int:
    async def one() -> int:
        return sum([(await store.aapply([Hit(limit, limit.prefix + "a", 1)]))[0].allowed for _ in range(tries // 10)])

    return sum(await asyncio.gather(*(one() for _ in range(10))))


# -- together -------------------------------------------------------------------------------------------------


def count(path: Path, spec: str, way: str, tries: int, results: Any) -> None:
    store, limit = open_at(path), limit_of("1000/day", spec)
    if way == "async":
        results.put(asyncio.run(passed_on_a_loop(store, limit, tries)))
    elif way == "threads":
        with ThreadPoolExecutor(4) as pool:
            results.put(sum(pool.map(lambda _: passed(store, limit, tries // 4), range(4))))
    else:
        results.put(passed(store, limit, tries))


@pytest.mark.parametrize("spec", ["fixed-window", "sliding-window-log"])
def test_four_processes_pass_exactly_the_limit(tmp_path: Path, spec: str) -> None:
    """Of 20,000 tries on one key at the same time 1,000 pass: blocking, in threads and on event loops alike."""
    results = SPAWN.Queue()
    ways = ("sync", "sync", "threads", "async")
    workers = [SPAWN.Process(target=count, args=(tmp_path, spec, way, 5_000, results)) for way in ways]
    for worker in workers:
        worker.start()
    assert sum(results.get(timeout=60) for _ in workers) == 1_000
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4


def count_leased(path: Path, tries: int, results: Any) -> None:
    rule = Rule(name="api", limits="1000/day", lease="2%")
    limiter = Limiter([rule], f"lmdb://{path}", settings=Settings(store_timeout=PATIENT))
    results.put(sum(limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(tries)))


def test_with_leases_four_processes_pass_at_most_the_limit(tmp_path: Path) -> None:
    """And no less than the limit without the shares that nobody consumes in the end: one for each process."""
    results = SPAWN.Queue()
    workers = [start(SPAWN, count_leased, tmp_path, 5_000, results) for _ in range(4)]
    assert 1_000 - 4 * 20 <= sum(results.get(timeout=60) for _ in workers) <= 1_000
    for worker in workers:
        worker.join()


def come_and_go(path: Path, results: Any) -> None:
    allowed = 0
    for _ in range(150):
        with closing(open_at(path)) as store:
            allowed += hit(store, limit_of("1000/day")).allowed
    results.put(allowed)


def test_processes_that_come_and_go_are_in_nobodys_way(tmp_path: Path) -> None:
    """Opening while another one is closing as the last one: no call fails and none is lost."""
    results = FORK.SimpleQueue()
    workers = [start(FORK, come_and_go, tmp_path, results) for _ in range(3)]
    assert [results.get() for _ in workers] == [150] * 3
    for worker in workers:
        worker.join()
    with closing(open_at(tmp_path)) as store:
        assert hit(store, limit_of("1000/day"), cost=0).remaining == 550


# -- killed ---------------------------------------------------------------------------------------------------


AMOUNT = 150
KEYS = 60
KILLS = 50


def admit(path: Path, kinds: list[str], seed: int, notes: Any) -> None:
    """Hit random keys for ever; a row of notes, nobody else's, counts whom it let in, right after the store did."""
    store, chance = open_at(path), random.Random(seed)
    limits = [limit_of(f"{AMOUNT}/day", kind) for kind in kinds]
    while True:
        kind, key = chance.randrange(len(kinds)), chance.randrange(KEYS)
        if hit(store, limits[kind], client=str(key)).allowed:
            notes[(seed * len(kinds) + kind) * KEYS + key] += 1


def test_a_storm_of_kills_leaves_it_usable_and_exact(tmp_path: Path) -> None:
    """Fifty workers killed at any moment: nobody has to wait, nothing counted is lost, nothing more is let in."""
    chance = random.Random(1)
    kinds = ["fixed-window", "sliding-window-log"]
    notes = multiprocessing.RawArray("l", (KILLS + 3) * len(kinds) * KEYS)
    with closing(open_at(tmp_path, timeout_us=5_000_000)) as store:
        workers = [start(FORK, admit, tmp_path, kinds, seed, notes) for seed in range(3)]
        for seed in range(3, KILLS + 3):
            time.sleep(chance.random() * 0.02)
            end(workers.pop(chance.randrange(3)))
            assert hit(store, limit_of("1000/day"), client="somebody else").allowed
            workers.append(start(FORK, admit, tmp_path, kinds, seed, notes))
        for worker in workers:
            end(worker)
        unnoted = 0
        for kind, name in enumerate(kinds):
            for key in range(KEYS):
                admitted = sum(notes[kind * KEYS + key :: len(kinds) * KEYS])
                left = passed(store, limit_of(f"{AMOUNT}/day", name), AMOUNT + 1, str(key))
                assert admitted + left <= AMOUNT
                unnoted += AMOUNT - admitted - left
        assert sum(notes) > 1_000, "the storm was under load"
        # A worker that dies between the store's answer and its note has counted what it could not tell.
        assert unnoted <= KILLS + 3


def test_a_worker_killed_inside_its_transaction_leaves_no_lock_and_no_count(tmp_path: Path) -> None:
    """Five die holding both locks: each time the next one goes on at once, with what was there before."""
    with closing(open_at(tmp_path, timeout_us=1_000_000)) as store:
        for number in range(5):
            assert hit(store, limit_of("20/day", "signalling")).remaining == 19 - number
            worker = start(FORK, decide_on, tmp_path, 7, signal.SIGKILL)
            worker.join()
            assert worker.exitcode == -signal.SIGKILL
        assert hit(store, limit_of("20/day", "signalling")).remaining == 14


# -- forked ---------------------------------------------------------------------------------------------------


def count_more(store: LmdbStore, tries: int, results: Any) -> None:
    results.put(passed(store, limit_of("1000/day"), tries))


def test_a_store_goes_through_a_fork(tmp_path: Path) -> None:
    """Opened before, it is opened again in each child; parent, children and grandchildren count exactly together."""
    results = FORK.SimpleQueue()
    with closing(open_at(tmp_path)) as store:
        assert passed(store, limit_of("1000/day"), 10) == 10
        workers = [start(FORK, count_more, store, 600, results) for _ in range(3)]
        mine = passed(store, limit_of("1000/day"), 600)
        for worker in workers:
            worker.join()
        assert mine + sum(results.get() for _ in workers) == 990
        assert hit(store, limit_of("1000/day"), cost=0).remaining == 0, "the parent's own is as it was"


@pytest.mark.parametrize("scene", ["busy", "waiting"])
def test_a_fork_while_a_thread_is_at_work_stops_nobody(tmp_path: Path, scene: str) -> None:
    """Whatever another thread does in the store then, the child gets an answer or a StoreError, no deadlock."""
    program = SUPPORT / "lmdb_forks.py"
    assert subprocess.run([sys.executable, program, scene, tmp_path], timeout=120, check=False).returncode == 0
