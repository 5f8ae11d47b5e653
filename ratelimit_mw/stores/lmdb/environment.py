"""An LMDB environment as this process has it open: opened at first use, and again after a fork.

**Durability.** Changes are not synced to the disk. They survive their process, and the system writes them out later.
If the machine stops first, the file may be damaged, so a mark shows that the environment was open, and the next start
sets the file aside. With ``durable``, or with data of another application in the environment, each change is synced.

**Time.** All processes count from one reading of the wall clock, kept in the environment until the machine restarts,
plus the monotonic clock of the machine. They agree to the microsecond, and no change of the wall clock affects them.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from ...errors import ConfigError, StoreError
from ...forksafe import create_lock
from ..per_loop import PerLoop
from .keys import END, META, PREFIX
from .lock import FileLock, LockQueue
from .records import Identity
from .shutdown_mark import boot_id, clear_mark, is_unclean, set_mark
from .transaction import Transactions

_LOCK_FILE: Final = "ratelimit_mw.lock"
_IDENTITY: Final = META + b"identity"
_IDENTITY_FORM: Final = re.compile(rb"([0-9a-f]{32}) ([1-9]\d{,4}) ([0-9a-f-]+) (\d+)")
"""The secret, the number of shared states, the boot ID, and the wall clock at the start of the monotonic clock."""
_BYTES_PER_SHARED_STATE: Final = 16_384
_MAX_SHARED_STATES: Final = 1 << 16
_CLOSING_SECONDS: Final = 1.0
_ABANDONED: Final[list[lmdb.Environment]] = []
"""Environments that a thread of the parent was using at a fork. The child must not even close them."""
_OPEN: Final[dict[str, Environment]] = {}
"""LMDB allows a process to open each path once."""
_registering = create_lock(sys.modules[__name__], "_registering", threading.Lock)
_log = logging.getLogger("ratelimit_mw")


class Environment:
    """The environment at one path. All but ``lock`` and ``queue`` is for the holder of the lock."""

    def __init__(self, path: str, size: int, durable: bool) -> None:
        self.path = path
        self.size = size
        self.durable = durable
        self.users = 0
        self._folder = Path(path)
        self.lock = FileLock(str(self._folder / _LOCK_FILE), self._forget_parent)
        self.queue = PerLoop(lambda: LockQueue(self.lock))
        self._env: lmdb.Environment | None = None
        self._transactions: Transactions | None = None
        self._wall_at_zero = 0

    def transactions(self) -> Transactions:
        """The states, opened if need be."""
        if not self.users:
            raise StoreError(f"lmdb://{self.path} was closed while a call waited for it")
        return self._transactions or self._open()

    def now_us(self) -> int:
        """Microseconds since 1970 by the clock of the environment."""
        return (time.monotonic_ns() + self._wall_at_zero) // 1000

    def discard(self) -> None:
        """Close the environment; the next call opens it again."""
        env, self._env, self._transactions = self._env, None, None
        if env is not None:
            env.close()

    def close(self) -> bool:
        """Close everything. The last process syncs the environment and clears the mark.

        False when a stopped worker holds the lock: then everything stays open, for the next user of the path.
        """
        if self.lock.fd < 0:
            return True
        try:
            self.lock.acquire(time.monotonic() + _CLOSING_SECONDS)
        except StoreError:
            return False
        try:
            was_open = self._env is not None
            self.discard()
            if was_open and not self._is_in_use():
                clear_mark(self.lock.fd, self._folder / "data.mdb")
        except OSError:
            _log.warning("lmdb://%s could not be synced to the disk", self.path, exc_info=True)
        finally:
            self.lock.release()
            self.lock.close()
        return True

    def _open(self) -> Transactions:
        self.discard()  # An attempt that failed may have left it open.
        boot = boot_id()
        if is_unclean(self.lock.fd, boot):
            self._set_aside()
        self._env = self._map(True)
        if not self.durable:
            if _has_other_data(self._env):
                _log.warning("lmdb://%s holds other data, so each change is synced, which is slow", self.path)
            else:
                self._env.close()
                set_mark(self.lock.fd, boot, self._folder)
                self._env = self._map(False)
        identity = self._read_identity(self._env, boot)
        self._transactions = Transactions(self._env, identity, self.size // self._env.stat()["psize"])
        return self._transactions

    def _map(self, sync: bool) -> lmdb.Environment:
        # Without spare transactions none is open at a fork. With a writable map a full disk would kill the process.
        # LMDB's own lock stays on, so that other programs can read and write the environment meanwhile.
        return lmdb.open(
            self.path, map_size=self.size, mode=0o700, sync=sync, metasync=sync, readahead=False, max_spare_txns=0
        )

    def _read_identity(self, env: lmdb.Environment, boot: str) -> Identity:
        """Read what all processes must agree on. The first process sets it, and the clock after each boot."""
        shared_states = max(1, min(_MAX_SHARED_STATES, self.size // _BYTES_PER_SHARED_STATE))
        with env.begin(write=True) as txn:
            match = _IDENTITY_FORM.fullmatch(txn.get(_IDENTITY) or b"")
            new = secrets.token_hex(16), str(shared_states), "", ""
            secret, number, clock_boot, wall_at_zero = map(bytes.decode, match.groups()) if match else new
            if clock_boot != boot:
                wall_at_zero = str(time.time_ns() - time.monotonic_ns())
                txn.put(_IDENTITY, f"{secret} {number} {boot} {wall_at_zero}".encode())
        self._wall_at_zero = int(wall_at_zero)
        return Identity(bytes.fromhex(secret), int(number))

    def _set_aside(self) -> None:
        """Rename a file that may be damaged, unless another process uses it."""
        if self._is_in_use():
            raise StoreError(f"lmdb://{self.path} may be damaged since the machine stopped, and a process has it open")
        (self._folder / "lock.mdb").unlink(missing_ok=True)
        data = self._folder / "data.mdb"
        with suppress(FileNotFoundError):
            data.replace(data.with_suffix(".mdb.unclean"))
            _log.warning(
                "lmdb://%s was open when the machine stopped, so all counts start at zero. The old file is"
                " data.mdb.unclean",
                self.path,
            )

    def _is_in_use(self) -> bool:
        """Whether another process has the environment open. For a process that does not: LMDB locks by process."""
        if not (self._folder / "lock.mdb").exists():
            return False
        lock = FileLock(str(self._folder / "lock.mdb"))
        try:
            return not lock.try_acquire()
        finally:
            lock.close()

    def _forget_parent(self, intact: bool) -> None:
        """In a child: close the parent's environment, unless another thread was using it at the fork."""
        if not intact and self._env is not None:
            _ABANDONED.append(self._env)
            self._env = None
        self.discard()
        self.queue = PerLoop(lambda: LockQueue(self.lock))


def _has_other_data(env: lmdb.Environment) -> bool:
    with env.begin(write=True) as txn, txn.cursor() as cursor:
        before = cursor.first() and not cursor.key().startswith(PREFIX)
        return before or cursor.set_range(END)


def environment_at(path: str, size: int, durable: bool) -> Environment:
    """The environment at a path, with one more user; ``ConfigError`` if this process uses it with other settings."""
    path = os.path.realpath(path)
    with _registering:
        environment = _OPEN.get(path)
        if environment is None:
            environment = _OPEN[path] = Environment(path, size, durable)
        elif (environment.size, environment.durable) != (size, durable):
            raise ConfigError(
                f"lmdb://{path}: this process already uses the path with size {environment.size} and durable"
                f" {environment.durable}. Use the same size and durable in every store URL of one path"
            )
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Remove one user. The last one closes the environment, unless a stopped worker holds its lock."""
    with _registering:
        environment.users -= 1
        if environment.users == 0 and environment.close():
            del _OPEN[environment.path]


@atexit.register
def _close_all() -> None:
    for environment in _OPEN.values():
        environment.close()
