"""The LMDB store in several processes: counting together, killed and forked."""

import fcntl
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from forked import exit_code
from lmdb_kit import FORK, decide_on, end, hit, limit_of, open_at, passed, start
from servers import wait_for

from ratelimit_mw.errors import StoreError

pytestmark = pytest.mark.slow


# -- together -------------------------------------------------------------------------------------------------


def come_and_go(path: Path, results: Any) -> None:
    allowed = 0
    for _ in range(40):
        with closing(open_at(path)) as store:
            allowed += hit(store, limit_of("1000/300 days")).allowed
    results.put(allowed)


def test_processes_that_open_and_close_lose_no_hit(tmp_path: Path) -> None:
    """A process may open the store while the last other process closes it."""
    results = FORK.SimpleQueue()
    workers = [start(FORK, come_and_go, tmp_path, results) for _ in range(3)]
    assert [results.get() for _ in workers] == [40] * 3
    for worker in workers:
        worker.join()
    with closing(open_at(tmp_path)) as store:
        assert hit(store, limit_of("1000/300 days"), cost=0).remaining == 880


def hold_id(path: Path, process_id: int, is_held: Any) -> None:
    with (path / "lock.mdb").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, process_id)
        is_held.set()
        signal.pause()


def test_a_process_id_of_two_containers_is_a_store_error(tmp_path: Path) -> None:
    """LMDB locks a byte by the process ID. The error says what the containers lack, and the store continues later."""
    with closing(open_at(tmp_path)) as store:
        hit(store, limit_of())
    is_held = FORK.Event()
    other = start(FORK, hold_id, tmp_path, os.getpid(), is_held)
    is_held.wait()
    with closing(open_at(tmp_path)) as store:
        try:
            with pytest.raises(StoreError, match=f"PID namespace has the same ID, {os.getpid()}"):
                hit(store, limit_of())
        finally:
            end(other)
        assert hit(store, limit_of()).allowed


# -- killed ---------------------------------------------------------------------------------------------------


AMOUNT = 150
KEYS = 60
KILLS = 20


def admit(path: Path, kinds: list[str], seed: int, notes: Any) -> None:
    """Hit random keys forever. Each worker counts its allowed hits in its own row of notes, after each call."""
    store, chance = open_at(path), random.Random(seed)
    limits = [limit_of(f"{AMOUNT}/300 days", kind) for kind in kinds]
    while True:
        kind, key = chance.randrange(len(kinds)), chance.randrange(KEYS)
        if hit(store, limits[kind], client=str(key)).allowed:
            notes[(seed * len(kinds) + kind) * KEYS + key] += 1


@pytest.mark.thorough
def test_kills_leave_the_store_usable_and_exact(tmp_path: Path) -> None:
    """Twenty workers are killed at any moment. Each next call succeeds, and no count is lost."""
    chance = random.Random(1)
    kinds = ["fixed-window", "sliding-window-log"]
    notes = multiprocessing.RawArray("l", (KILLS + 3) * len(kinds) * KEYS)
    with closing(open_at(tmp_path)) as store:
        workers = [start(FORK, admit, tmp_path, kinds, seed, notes) for seed in range(3)]
        for seed in range(3, KILLS + 3):
            wait_for(lambda seed=seed: sum(notes) > 20 * seed, "the workers to be busy")
            time.sleep(chance.random() * 0.02)
            end(workers.pop(chance.randrange(3)))
            assert hit(store, limit_of("1000/300 days"), client="another client").allowed
            workers.append(start(FORK, admit, tmp_path, kinds, seed, notes))
        for worker in workers:
            end(worker)
        unnoted = 0
        for kind, name in enumerate(kinds):
            for key in range(KEYS):
                admitted = sum(notes[kind * KEYS + key :: len(kinds) * KEYS])
                left = passed(store, limit_of(f"{AMOUNT}/300 days", name), AMOUNT + 1, str(key))
                assert admitted + left <= AMOUNT
                unnoted += AMOUNT - admitted - left
        assert sum(notes) > 400, "the workers were busy"
        # A worker that dies between its call and its note has counted one hit more than its notes show.
        assert unnoted <= KILLS + 3


def test_worker_killed_in_its_transaction_leaves_no_lock_and_no_count(tmp_path: Path) -> None:
    """Five workers die while they hold both locks. Each next call succeeds, with the counts of before."""
    with closing(open_at(tmp_path)) as store:
        for number in range(5):
            assert hit(store, limit_of("20/300 days", "signalling")).remaining == 19 - number
            worker = start(FORK, decide_on, tmp_path, 7, signal.SIGKILL)
            worker.join()
            assert worker.exitcode == -signal.SIGKILL
        assert hit(store, limit_of("20/300 days", "signalling")).remaining == 14


# -- forked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", ["refunds", "waiting", "without_hooks"])
def test_fork_beside_threads_or_without_hooks(tmp_path: Path, scene: str) -> None:
    """Whatever another thread does in the store, the child gets a decision or a StoreError, and no deadlock."""
    command = [sys.executable, SUPPORT / "busy_forks.py", scene, f"lmdb://{tmp_path}/state"]
    assert subprocess.run(command, timeout=200, check=False).returncode == 0


def test_a_daemon_closes_the_files_that_it_has_inherited(tmp_path: Path) -> None:
    """A daemon does that after its fork. It counts with its parent."""

    def close_and_hit() -> bool:
        os.closerange(3, 1024)
        return hit(store, limit_of("9/300 days")).remaining == 7

    with closing(open_at(tmp_path)) as store:
        hit(store, limit_of("9/300 days"))
        assert exit_code(close_and_hit) == 0
        assert hit(store, limit_of("9/300 days")).remaining == 6
