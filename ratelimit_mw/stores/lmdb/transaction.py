"""Run work in transactions, sweep expired records, and watch how full the environment is.

Every sixteenth write of a process looks at the next 64 records and deletes those that have expired. The position of
the sweep is kept in the environment, so all processes continue one sweep, however short they live.

New keys share states when three quarters of the pages are used, and nothing grows when seven eighths are used. LMDB
needs the last eighth to change records: it never changes a page in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVar

import lmdb

from ...clock import Clock
from ...errors import StoreError
from .keys import END, EXPIRY, FIRST_SWEPT, META
from .records import FROZEN, FULL, ROOMY, SHARING, NoRoomError, Records

_SWEPT_EVERY: Final = 16
_SWEPT_AT_ONCE: Final = 64
_MEASURED_EVERY: Final = 64
_SWEEP_AT: Final = META + b"sweep"
_EFFECTS: Final = {
    SHARING: "new clients share counts, and cannot be banned",
    FROZEN: "requests of new clients are rejected",
}
_Result = TypeVar("_Result")
_log = logging.getLogger("ratelimit_mw")


class Transactions:
    """The transactions of an environment, for the holder of its lock."""

    def __init__(self, env: lmdb.Environment, identity: tuple[bytes, int], pages: int) -> None:
        self._env = env
        self._identity = identity
        self._pages = pages
        self._room = ROOMY
        self._logged = {ROOMY}
        self._writes = 0

    def run(self, work: Callable[[Records], _Result], clock: Clock, is_over: Callable[[], bool]) -> _Result:
        """Do the work, and commit its changes. When the map is full, try again with less room."""
        now, room, sweeps = clock(), self._room, True
        while True:
            txn = self._env.begin(write=True)
            try:
                records = Records(txn, room, now, is_over, *self._identity)
                result = work(records)
                if records.changed:
                    self._writes += 1
                    if sweeps and self._writes % _SWEPT_EVERY == 1:
                        _sweep(txn, now)
                        if self._writes % _MEASURED_EVERY == 1:
                            self._measure()
                    txn.commit()
                return result
            except NoRoomError:
                room = FULL
            except lmdb.MapFullError:
                room, sweeps = self._find_room(), False
            finally:
                txn.abort()  # Without effect after a commit.

    def _measure(self) -> None:
        counts = self._env.stat()
        used = counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"]
        shares, is_full = used * 4 >= self._pages * 3, used * 8 >= self._pages * 7
        self._set_room(FROZEN if is_full else SHARING if shares else ROOMY)

    def _find_room(self) -> int:
        """Make room in a full map. A reader that died may keep old pages, or other data may fill the map."""
        if not self._env.reader_check():
            if self._room == FROZEN:
                name = f"lmdb://{self._env.path()}"
                raise StoreError(f"{name} is full: other data fills it, or a reader that does not end keeps old pages")
            self._set_room(self._room + 1)
        return self._room

    def _set_room(self, room: int) -> None:
        if room not in self._logged:
            self._logged.add(room)
            _log.warning("lmdb://%s is nearly full: until records expire, %s", self._env.path(), _EFFECTS[room])
        self._room = room


def _sweep(txn: lmdb.Transaction[bytes], now: int) -> None:
    """Delete the expired ones of the next records. After the last record the sweep starts over."""
    stamp = now.to_bytes(EXPIRY, "big")
    with txn.cursor() as cursor:
        is_there = cursor.set_range(max(txn.get(_SWEEP_AT) or b"", FIRST_SWEPT))
        records = islice(cursor.iternext(keys=False), _SWEPT_AT_ONCE) if is_there else ()
        expired = [cursor.key() for data in records if data[:EXPIRY] <= stamp and cursor.key() < END]
        last = cursor.key()
    for name in expired:
        txn.delete(name)
    # At the end of the environment the cursor has no name, or the name of a record of another application.
    txn.put(_SWEEP_AT, last if FIRST_SWEPT <= last < END else FIRST_SWEPT)
