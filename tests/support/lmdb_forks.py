"""Forks while threads use the LMDB store, in a separate program: pytest's threads and tracers do not survive a fork.

`python lmdb_forks.py SCENE FOLDER`. The exit code is 0 when the scene holds.
"""

import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lmdb_kit import NOW, hit, limit_of, open_at

from ratelimit_mw import forksafe
from ratelimit_mw.algorithms.fixed_window import FixedWindow, State
from ratelimit_mw.decision import Decision
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb.store import LmdbStore

PLENTY = "10000000/day"


def clock() -> int:
    return NOW * 1_000_000


def one_hit_in_child(store: LmdbStore, fork: Callable[[], int] = os.fork) -> int:
    """Return the exit code of a child that makes one hit: 0 allowed, 3 a StoreError. Kill the child after 60 s."""
    pid = fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if hit(store, limit_of(PLENTY)).allowed else 2
        except StoreError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def busy(path: Path) -> bool:
    """Fork forty times beside a thread that never pauses. Each child gets a decision."""
    with closing(open_at(path, clock=clock)) as store:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                hit(store, limit_of(PLENTY))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            return [one_hit_in_child(store) for _ in range(40)] == [0] * 40
        finally:
            over.set()
            thread.join()


def waiting(path: Path) -> bool:
    """Fork while a thread is in its transaction for longer than a fork waits. It gets a decision or a StoreError."""
    forksafe._SECONDS = 0.02  # type: ignore[misc]
    with closing(open_at(path, timeout_us=50_000, clock=clock)) as store:
        hit(store, limit_of(PLENTY))
        inside, over = threading.Event(), threading.Event()

        class Waiting(FixedWindow):
            def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
                inside.set()
                over.wait(20)
                return super().decide(state, now, cost)

        limit = limit_of(PLENTY)
        limit.decide = Waiting(limit.quota).decide
        thread = threading.Thread(target=hit, args=(store, limit, "b"))
        thread.start()
        try:
            inside.wait(20)
            threading.Timer(0.2, over.set).start()
            code = one_hit_in_child(store)
        finally:
            over.set()
            thread.join()
    with closing(open_at(path, clock=clock)) as store:
        return code in (0, 3) and hit(store, limit_of(PLENTY), "b").remaining == 9_999_998


def without_hooks(path: Path) -> bool:
    """Fork in C code like uWSGI: Python's hooks do not run, and the child opens the files itself."""
    with closing(open_at(path, clock=clock)) as store:
        hit(store, limit_of(PLENTY))
        fork = ctypes.PyDLL(None).fork
        codes = [one_hit_in_child(store, fork) for _ in range(3)]
        return codes == [0] * 3 and hit(store, limit_of(PLENTY)).remaining == 9_999_995


SCENES = {"busy": busy, "waiting": waiting, "without hooks": without_hooks}

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
    sys.exit(not SCENES[sys.argv[1]](Path(sys.argv[2])))
