"""Helpers for the tests of the LMDB store: short calls, a look into its files, and worker processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.algorithms.fixed_window import FixedWindow, State
from ratelimit_mw.decision import Decision, Hit, Limit
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.lmdb.lock import FileLock
from ratelimit_mw.stores.lmdb.records import META
from ratelimit_mw.stores.lmdb.store import LmdbStore

NOW = 1_767_268_820
SIZE = 64 << 20
PATIENT = 20_000_000
FORK = multiprocessing.get_context("fork")


class Signalling(FixedWindow):
    """A fixed window that sends its own process a signal for a cost of 7, inside the transaction."""

    signal = signal.SIGKILL

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        if cost == 7:
            os.kill(os.getpid(), self.signal)
        return super().decide(state, now, cost)


def limit_of(quota: str = "2/minute", algorithm: object = "fixed-window") -> Limit:
    """A limit. "signalling" is the algorithm above, which no settings file can name."""
    if algorithm != "signalling":
        return build_limit("api", 0, Quota.parse(quota), algorithm)
    limit = build_limit("api", 0, Quota.parse(quota), "fixed-window")
    limit.algorithm = Signalling(limit.quota)
    limit.decide = limit.algorithm.decide
    return limit


def open_at(path: Path, timeout_us: int = PATIENT, **settings: Any) -> LmdbStore:
    return LmdbStore(str(path), **{"size": SIZE, **settings}, timeout_us=timeout_us)


def hit(store: Store, limit: Limit, client: str = "a", cost: int = 1, now: int | None = None) -> Decision:
    return store.apply([Hit(limit, limit.prefix + client, cost)], now)[0]


def passed(store: Store, limit: Limit, tries: int, client: str = "a") -> int:
    return sum(hit(store, limit, client).allowed for _ in range(tries))


def names(path: Path) -> list[bytes]:
    """Return all names in an environment that no process has open."""
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn, txn.cursor() as cursor:
        return list(cursor.iternext(values=False))


def states(path: Path) -> list[bytes]:
    return [name for name in names(path) if not name.startswith(META)]


def start(context: Any, target: Callable[..., None], *arguments: object) -> Any:
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def end(process: Any) -> None:
    process.kill()
    process.join()


def _hold(lock: FileLock, is_held: Any, is_over: Any) -> None:
    assert lock.try_acquire()
    is_held.set()
    is_over.wait()


@contextmanager
def held_elsewhere(lock: FileLock) -> Iterator[None]:
    """Another process has the lock."""
    is_held, is_over = FORK.Event(), FORK.Event()
    process = start(FORK, _hold, lock, is_held, is_over)
    is_held.wait()
    yield
    is_over.set()
    process.join()


def decide_on(path: Path, cost: int, how: signal.Signals) -> None:
    Signalling.signal = how
    hit(open_at(path), limit_of("20/300 days", "signalling"), cost=cost)


def mark_of(path: Path) -> str:
    """Return the shutdown mark: the boot ID, or "" when the environment was closed."""
    return (path / "ratelimit_mw.lock").read_text()


def note_files(patch: pytest.MonkeyPatch) -> list[lmdb.Environment]:
    """Return a list that gets the environments that are opened from now on. Those of one store are closed but one."""
    found: list[lmdb.Environment] = []
    open_files = lmdb.open

    def noting(*arguments: Any, **options: Any) -> lmdb.Environment:
        found.append(open_files(*arguments, **options))
        return found[-1]

    patch.setattr(lmdb, "open", noting)
    return found
