"""An LMDB environment as this process has it open: from when it is first asked for, and again after a fork.

**Durability.** Nothing is synced to the disk as it is written: what a process has written survives that process,
and the system writes it out in its own time. If the machine stops in between, the file may be damaged. So a mark says
who has it open since which start of the machine, and if that was another start and nobody closed it in order, the
environment begins anew. Where others keep data in it too, or when asked to be durable, everything is synced instead.

**Time.** All processes count from one reading of the wall clock, kept in the environment for as long as the machine
runs, plus the machine's monotonic clock: they agree to the microsecond, whatever is done to the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from ...errors import StoreError
from .keys import END, META, PREFIX
from .lock import FileLock
from .queue import Line
from .records import Identity
from .shutdown_mark import Mark, boot_id, read_mark, sync_folder, write_mark
from .transaction import Ledger

__all__ = ["Environment"]

_LOCK_FILE: Final = "ratelimit_mw.lock"
_IDENTITY: Final = META + b"identity"
_CLOCK: Final = META + b"clock"
_BYTES_PER_SLOT: Final = 16_384
_MOST_SLOTS: Final = 1 << 16
_CLOSING_US: Final = 1_000_000
_THREAD_SECONDS: Final = 1.0
_STRANDED: Final[list[lmdb.Environment]] = []
"""What a thread of the parent was at work in when it forked; not to be touched in the child, not even to close it."""
_log = logging.getLogger("ratelimit_mw")


class Environment:
    """Everything but ``lock`` and ``line`` is for the holder of the lock."""

    def __init__(self, path: str, size: int, durable: bool) -> None:
        self.path = path
        self.size = size
        self.durable = durable
        self.users = 0
        self.lock = FileLock(str(Path(path) / _LOCK_FILE))
        self._env: lmdb.Environment | None = None
        self._ledger: Ledger | None = None
        self._wall_at_zero = 0
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}

    def line(self) -> Line:
        """Where the calls of the running event loop wait for the lock."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            for ended in [each for each in list(self._lines) if each.is_closed()]:
                self._lines.pop(ended, None)
            line = self._lines[loop] = Line(self.lock)
        return line

    def ledger(self) -> Ledger:
        """The states in it, opened if need be."""
        if not self.users:
            raise StoreError(f"{self.path} was closed while a call waited for it")
        return self._ledger or self._open()

    def now_us(self) -> int:
        """Microseconds since 1970 by the environment's clock."""
        return (time.monotonic_ns() + self._wall_at_zero) // 1000

    def _open(self) -> Ledger:
        boot = boot_id()
        mark = read_mark(self.lock.fd)
        if mark is not None and mark.open and mark.boot != boot:
            self._start_anew()
        if not self.durable and not (Path(self.path) / "data.mdb").exists():
            self._mark_as_open(boot)
        env = self._mapped(self.durable)
        try:
            if not self.durable and _holds_other_data(env):
                env.close()
                env = self._mapped(True)
                _log.warning("%s holds other data too, so each change is synced to the disk, which is slow", self.path)
            if not env.flags()["sync"]:
                self._mark_as_open(boot)
            identity = self._agree(env, boot)
            env.reader_check()
            self.lock.join()
        except BaseException:
            env.close()
            raise
        self._env = env
        self._ledger = Ledger(env, identity, self.size // env.stat()["psize"])
        return self._ledger

    def _mark_as_open(self, boot: str) -> None:
        """Before anything is written that is not synced: from now on a stop of the machine is an unclean one."""
        if read_mark(self.lock.fd) != Mark(boot, True):
            write_mark(self.lock.fd, Mark(boot, True))
            sync_folder(self.path)

    def _mapped(self, sync: bool) -> lmdb.Environment:
        # Without spare transactions none is open when the process forks. Not a writable map: a full disk would kill.
        return lmdb.open(
            self.path, map_size=self.size, mode=0o700, sync=sync, metasync=sync, readahead=False, max_spare_txns=0
        )

    def _agree(self, env: lmdb.Environment, boot: str) -> Identity:
        """Read what all processes count by, or be the one to set it."""
        with env.begin(write=True) as txn:
            identity = txn.get(_IDENTITY)
            if identity is None:
                slots = max(1, min(_MOST_SLOTS, self.size // _BYTES_PER_SLOT))
                identity = secrets.token_bytes(16) + slots.to_bytes(4, "big")
                txn.put(_IDENTITY, identity)
            known, _, wall_at_zero = (txn.get(_CLOCK) or b"").decode().partition(" ")
            if known != boot:
                wall_at_zero = str(time.time_ns() - time.monotonic_ns())
                txn.put(_CLOCK, f"{boot} {wall_at_zero}".encode())
        self._wall_at_zero = int(wall_at_zero)
        return Identity(identity[:16], int.from_bytes(identity[16:], "big"))

    def _start_anew(self) -> None:
        """Put the files aside, unless somebody has them open all the same."""
        data, lock = Path(self.path) / "data.mdb", Path(self.path) / "lock.mdb"
        if not self.lock.alone() or _in_use(lock):
            raise StoreError(f"{self.path} may be damaged since the machine stopped, and somebody has it open")
        self.lock.leave()
        lock.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            data.replace(data.with_suffix(".mdb.unclean"))
            _log.warning("the machine stopped while %s was open: begun anew, the old file is beside it", self.path)

    def discard(self) -> None:
        """Close what has gone wrong; the next call opens it again."""
        env, self._env, self._ledger = self._env, None, None
        if env is not None:
            env.close()

    def close(self) -> None:
        """Let go of it. The last process syncs it to the disk and marks it as closed in order."""
        if self.lock.fd < 0:
            return
        try:
            self.lock.acquire(_CLOSING_US)
        except StoreError:
            # Somebody is stopped inside: what is ours is closed all the same, and nothing said of the rest.
            if self.lock.hold_threads(_THREAD_SECONDS):
                self.discard()
                self.lock.close()
                self.lock.let_threads()
            return
        try:
            if self._env is not None:
                self._close_in_order(self._env)
        except (lmdb.Error, OSError):
            _log.warning("%s could not be synced to the disk", self.path, exc_info=True)
        finally:
            self.discard()
            self.lock.leave()
            self.lock.release()
            self.lock.close()

    def _close_in_order(self, env: lmdb.Environment) -> None:
        mark = read_mark(self.lock.fd)
        if mark is not None and mark.open and self.lock.alone():
            env.sync(True)
            write_mark(self.lock.fd, mark._replace(open=False))

    def forget_parent(self, in_order: bool) -> None:
        """In a forked child: the parent's environment is not ours. ``in_order``: no thread was at work in it."""
        if not in_order and self._env is not None:
            _STRANDED.append(self._env)
            self._env = self._ledger = None
        self.discard()
        self._lines = {}
        self.lock.forget_parent()


def _holds_other_data(env: lmdb.Environment) -> bool:
    with env.begin(write=True) as txn, txn.cursor() as cursor:
        before = cursor.first() and not cursor.key().startswith(PREFIX)
        return before or cursor.set_range(END)


def _in_use(lock: Path) -> bool:
    """Whether a process has the environment open that this is the lock file of."""
    if not lock.exists():
        return False
    other = FileLock(str(lock))
    try:
        return not other.try_acquire()
    finally:
        other.close()
