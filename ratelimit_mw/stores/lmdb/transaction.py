"""Run calls in transactions, sweep expired records, and watch how full the environment is.

Every sixteenth write of a process looks at the next 64 records and deletes those that have expired. The position of
the sweep is kept in the environment, so all processes continue one sweep, however short they live.

A call that needs more room fails when seven eighths of the pages are used. LMDB needs the last eighth to change and to
delete records, because it never changes a page in place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import lmdb

from ...clock import machine
from ...errors import StoreError
from ..blocking import run_blocking
from .records import EXPIRY, META, STATE, Records

_SWEPT_EVERY: Final = 16
_SWEPT_AT_ONCE: Final = 64
_MEASURED_EVERY: Final = 64
_SWEEP_AT: Final = META + b"sweep"
_log = logging.getLogger("ratelimit_mw")


class Transactions:
    """The transactions of an environment, for the holder of its lock."""

    def __init__(self, env: lmdb.Environment, pages: int, wall_at_zero: int) -> None:
        self._env = env
        self._pages = pages
        self._wall_at_zero = wall_at_zero
        self._is_full = self._has_logged = False
        self._writes = 0

    def run(self, operation: str, arguments: Sequence[Any], options: Mapping[str, Any], now: int | None) -> Any:
        """Do an operation, and commit its changes. When the map is full, try again with the room of expired records.

        ``now`` is the time of the store in microseconds. By default it is that of the clock of all processes.
        """
        now, is_second = now or (machine.monotonic_ns() + self._wall_at_zero) // 1000, False
        while True:
            txn = self._env.begin(write=True)
            try:
                records = Records(txn, self._is_full, now)
                result = run_blocking(getattr(records, operation)(*arguments, **options))
                if records.changed:
                    self._writes += 1
                    if self._writes % _SWEPT_EVERY == 1:
                        self._look_around(txn, now)
                    txn.commit()
                return result
            except lmdb.MapFullError:
                if is_second:
                    problem = "Use a larger size. Or a reader that does not end, such as mdb_copy, keeps old pages"
                    raise StoreError(f"lmdb://{self._env.path()} is full. {problem}") from None
            finally:
                txn.abort()  # without effect after a commit
            self._make_room(now)
            is_second = True

    def _look_around(self, txn: lmdb.Transaction[bytes], now: int) -> None:
        _sweep(txn, now)
        if self._writes % _MEASURED_EVERY == 1:
            self._measure()

    def _measure(self) -> None:
        counts = self._env.stat()
        used = counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"]
        self._is_full = used * 8 >= self._pages * 7
        if self._is_full and not self._has_logged:
            self._has_logged, effect = True, "new keys are a store error"
            _log.warning("lmdb://%s is full: until records expire, %s", self._env.path(), effect)

    def _make_room(self, now: int) -> None:
        """Free the pages of readers that died, and those of expired records."""
        self._env.reader_check()
        with suppress(lmdb.MapFullError), self._env.begin(write=True) as txn:
            _sweep(txn, now)
        self._measure()


def _sweep(txn: lmdb.Transaction[bytes], now: int) -> None:
    """Delete the expired ones of the next records. After the last record the sweep starts over."""
    stamp = now.to_bytes(EXPIRY, "big")
    with txn.cursor() as cursor:
        is_there = cursor.set_range(max(txn.get(_SWEEP_AT) or b"", STATE))
        records = islice(cursor.iternext(keys=False), _SWEPT_AT_ONCE) if is_there else ()
        expired = [cursor.key() for data in records if data[:EXPIRY] <= stamp]
        last = cursor.key()  # empty after the last record
    for name in expired:
        txn.delete(name)
    txn.put(_SWEEP_AT, max(last, STATE))
