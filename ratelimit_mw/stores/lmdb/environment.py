"""An LMDB environment as this process has it open: opened at first use, and again after a fork or a ``close``.

**Durability.** Changes are not synced to the disk. They survive their process, and the system writes them out later.
If the machine stops first, the file may be damaged. So the lock file contains a mark, the boot ID, from the first
unsynced change until everything is synced. A start that finds the mark of an earlier boot sets the file aside.

**Time.** All processes count from one reading of the wall clock, kept in the environment until the machine restarts,
plus the monotonic clock of the machine. They agree to the microsecond, and no change of the wall clock affects them.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from ...clock import Clock, machine
from ...errors import StoreError, url_of
from ...runtime.blocking import PerLoop
from ..budget import ThreadClock
from .lock import FLAGS, FileLock, LockQueue
from .records import META, PREFIX, LmdbCall, Transactions

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""A file with a text that differs after each start of the machine."""
_LOCK_FILE: Final = "ratelimit_mw.lock"
_CLOCK: Final = META + b"clock"
_CLOCK_FORM: Final = re.compile(rb"([0-9a-f-]+) (\d+)")
"""The boot ID, and the wall clock at the start of the monotonic clock."""
_CLOSING_SECONDS: Final = 1.0
_LOCK_BYTES: Final = 8192
"""The size of LMDB's own lock file."""
_ABANDONED: Final[list[lmdb.Environment | None]] = []
"""Environments that a thread of the parent was using at a fork. The child must not even close them."""
_log = logging.getLogger("ratelimit_mw")


class Environment:
    """The environment at one path, for all stores of this process. All but ``lock`` and ``queue`` needs the lock."""

    def __init__(self, path: str, size: int) -> None:
        self.size = size
        self._name = f"lmdb://{path}"
        self._folder = Path(path)
        self.lock = FileLock(self._folder / _LOCK_FILE, self._forget_parent)
        self.queue = PerLoop(lambda: LockQueue(self.lock))
        self._env: lmdb.Environment | None = None
        self._transactions: Transactions | None = None

    def run(self, work: Callable[[LmdbCall], Any], clock: Clock | None = None) -> Any:
        """Do an operation of ``LmdbCall``, at the time of ``clock``, by default of the clock of all processes."""
        now = clock() if clock else None
        try:
            try:
                return (self._transactions or self._open()).run(work, now)
            except lmdb.MapResizedError:
                # Another process uses a larger size. No transaction has begun. Opening again maps the whole file.
                return self._open().run(work, now)
        except (lmdb.Error, OSError) as error:
            self._discard()
            raise StoreError(f"{self._name} failed: {type(error).__name__}: {error}") from error

    def grow(self, size: int) -> None:
        """Use a larger size from the next operation on. This needs no lock: nothing is closed here."""
        if size > self.size:
            self.size, self._transactions = size, None

    def close(self) -> None:
        """Close everything. The last process syncs the environment and clears the mark.

        When a stopped worker holds the lock, everything stays open, for the next use of the path.
        """
        if self.lock.fd < 0:
            return
        with suppress(StoreError):
            clock = ThreadClock(_CLOSING_SECONDS)
            self.lock.acquire(clock, _CLOSING_SECONDS)
            try:
                was_open = self._env is not None
                self._discard()
                if was_open and not self._is_in_use():
                    self._write_mark(b"", self._folder / "data.mdb")
            except OSError:
                _log.warning("%s could not be synced to the disk", self._name, exc_info=True)
            finally:
                self.lock.release(close=True)

    def _discard(self) -> None:
        """Close the environment; the next call opens it again."""
        env, self._env, self._transactions = self._env, None, None
        if env is not None:
            env.close()

    def _open(self) -> Transactions:
        self._discard()  # An attempt that failed may have left it open.
        boot = Path(BOOT_ID).read_bytes().strip()
        if self._read_mark() not in (b"", boot):
            self._set_aside()
        with closing(self._map(sync=True)) as env, env.begin() as txn:
            if _has_other_data(txn):
                raise StoreError(f"{self._name} holds data of another application. Use a directory of its own")
        if self._read_mark() != boot:
            self._write_mark(boot, self._folder)
        self._env = self._map(sync=False)
        pages = self.size // self._env.stat()["psize"]
        self._transactions = Transactions(self._env, pages, self._read_clock(self._env, boot))
        return self._transactions

    def _map(self, sync: bool) -> lmdb.Environment:
        # Without spare transactions none is open at a fork. With a writable map a full disk would kill the process.
        # LMDB's own lock stays on, so that other programs can read and write the environment meanwhile.
        for file in (self._folder / "data.mdb", self._folder / "lock.mdb"):
            if file.is_symlink():  # LMDB would write into the file behind the link
                raise StoreError(f"{self._name} failed: {file} is a symbolic link")
        self._fill_lock_file()
        options = {"mode": 0o700, "sync": sync, "metasync": sync, "readahead": False, "max_spare_txns": 0}
        try:
            return lmdb.open(str(self._folder), map_size=self.size, **options)  # type: ignore[arg-type]
        except lmdb.LockError as error:  # LMDB locks one byte by the process ID
            text = f"a process in another PID namespace has the same ID, {os.getpid()}, and has the environment open"
            fix = "Let these containers share their PID namespace"
            raise StoreError(f"{self._name} failed: {text} ({error}). {fix}") from error

    def _fill_lock_file(self) -> None:
        """Raise ``OSError`` on a full disk. LMDB would map the file with a hole, and a write to it kill the process."""
        with os.fdopen(os.open(self._folder / "lock.mdb", FLAGS, 0o600), "r+b") as file:
            if not any(file.read(_LOCK_BYTES)):
                file.seek(0)
                file.write(bytes(_LOCK_BYTES))

    def _read_clock(self, env: lmdb.Environment, boot: bytes) -> int:
        """Return the wall clock at zero, in nanoseconds. The first process after a start of the machine sets it."""
        with env.begin(write=True) as txn:
            match = _CLOCK_FORM.fullmatch(txn.get(_CLOCK) or b"")
            if match and match[1] == boot:
                return int(match[2])
            wall_at_zero = machine.time_ns() - machine.monotonic_ns()
            txn.put(_CLOCK, b"%b %d" % (boot, wall_at_zero))
        return wall_at_zero

    def _set_aside(self) -> None:
        """Rename a file that may be damaged, unless another process uses it."""
        if self._is_in_use():
            raise StoreError(f"{self._name} may be damaged since the machine stopped, and a process has it open")
        data = self._folder / "data.mdb"
        with suppress(FileNotFoundError):
            data.replace(data.with_suffix(".mdb.unclean"))
            _log.warning(
                "%s was open when the machine stopped, so all counts start at zero."
                " The old file is data.mdb.unclean. See %s",
                self._name,
                url_of("how-to/operate/log-messages#lmdb-unclean"),
            )
        self._write_mark(b"", self._folder)  # or the next start, if this one fails now, would replace the old file

    def _read_mark(self) -> bytes:
        return os.pread(self.lock.fd, 200, 0)

    def _write_mark(self, mark: bytes, path: Path) -> None:
        """Sync a file or folder to the disk, and after it the mark."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.ftruncate(self.lock.fd, 0)
        os.pwrite(self.lock.fd, mark, 0)
        os.fsync(self.lock.fd)

    def _is_in_use(self) -> bool:
        """Return whether another process has the environment open. This process must not: LMDB locks by process."""
        path = self._folder / "lock.mdb"
        with closing(FileLock(path)) as lock:
            return path.exists() and not lock.try_acquire()

    def _forget_parent(self, intact: bool) -> None:
        if not intact:
            _ABANDONED.append(self._env)
            self._env = None
        self._discard()


def _has_other_data(txn: lmdb.Transaction[bytes]) -> bool:
    with txn.cursor() as cursor:
        ends = [cursor.key() for find in (cursor.first, cursor.last) if find()]
    return not all(name.startswith(PREFIX) for name in ends)


_environments: Final[dict[str, Environment]] = {}
"""LMDB allows a process to open each path once, so an environment is kept for the stores that come later."""


def environment_at(path: str, size: int) -> Environment:
    """Return the environment of a path. Of several sizes, the largest counts."""
    path = os.path.realpath(path)
    environment = _environments.setdefault(path, Environment(path, size))
    environment.grow(size)
    return environment


@atexit.register
def _close_all() -> None:
    for environment in _environments.values():
        environment.close()
