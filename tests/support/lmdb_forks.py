"""Forks while threads are inside the LMDB store, as a program: a test runner's own threads and tracers know no forks.

`python lmdb_forks.py busy FOLDER` and `python lmdb_forks.py waiting FOLDER`; exit code 0 when what has to hold holds.
"""

import os
import signal
import sys
import threading
import warnings
from contextlib import closing
from pathlib import Path

from lmdb_kit import hit, limit_of, open_at

from ratelimit_mw.algorithms.fixed_window import FixedWindow, State
from ratelimit_mw.decision import Decision
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb import registry
from ratelimit_mw.stores.lmdb.store import LmdbStore

PLENTY = "10000000/day"


def one_forked_hit(store: LmdbStore) -> int:
    """The exit code of a child that makes one hit: 0 allowed, 3 a StoreError; it is killed after 20 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if hit(store, limit_of(PLENTY)).allowed else 2
        except StoreError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def busy(path: Path) -> bool:
    """Forty forks beside a thread that never stops: every child is served."""
    with closing(open_at(path, timeout_us=2_000_000)) as store:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                hit(store, limit_of(PLENTY))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            return [one_forked_hit(store) for _ in range(40)] == [0] * 40
        finally:
            over.set()
            thread.join()


def waiting(path: Path) -> bool:
    """A fork beside a thread that stays inside for longer than a fork waits: an answer or a StoreError."""
    registry._FORK_SECONDS = 0.02  # type: ignore[misc]
    with closing(open_at(path)) as store:
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
            code = one_forked_hit(store)
        finally:
            over.set()
            thread.join()
        return code in (0, 3) and hit(store, limit_of(PLENTY), "b").remaining == 9_999_998


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of what is tested here
    sys.exit(not {"busy": busy, "waiting": waiting}[sys.argv[1]](Path(sys.argv[2])))
