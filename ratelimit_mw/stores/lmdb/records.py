"""Calls in transactions, the names of records, and the sweep of expired ones.

The name of a record begins with one prefix, and its data with the time of expiry. An expired state equals a fresh one.

Examples:
    \\xffratelimit_mw:meta:...                                    the clock of all processes, the place of the sweep
    \\xffratelimit_mw:state:1|api|gcra|1m|{ip=192.0.2.7}          the state of one key
    \\xffratelimit_mw:state#<digest>                              the state of a key that is too long for LMDB

Every sixteenth write of a process looks at the next 64 records and deletes those that have expired. The position of
the sweep is kept in the environment, so all processes continue one sweep, however short they live.

A call that needs more room fails when seven eighths of the pages are used. LMDB needs the last eighth to change and to
delete records, because it never changes a page in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any, Final

import lmdb

from ...clock import machine
from ...decision import Decision, Hit
from ...errors import NoRoomError, StoreError
from ...runtime.blocking import run_blocking
from ..base import MAX_LISTED, KeyPage
from ..bytecall import ByteCall, Write

PREFIX: Final = b"\xffratelimit_mw:"
"""No text in UTF-8 begins with the byte 255."""
META: Final = PREFIX + b"meta:"
STATE: Final = PREFIX + b"state"
EXPIRY: Final = 8
"""The bytes of the time at the start of each record from ``STATE`` on."""
_MAX_NAME: Final = 511
_PING: Final = META + b"ping"
_SMALL: Final = 128
_SWEPT_EVERY: Final = 16
_SWEPT_AT_ONCE: Final = 64
_MEASURED_EVERY: Final = 64
_SWEEP_AT: Final = META + b"sweep"
_log = logging.getLogger("ratelimit_mw")


class _NewKeyError(lmdb.MapFullError):
    """Seven eighths of the map are used. The rest is for records that are there."""


class LmdbCall(ByteCall):
    """A call within a write transaction. ``changed`` asks for a commit."""

    title = "LMDB"

    def __init__(self, txn: lmdb.Transaction[bytes], is_full: bool, clock: int) -> None:
        self._txn = txn
        self._is_full = is_full
        self._clock = clock
        self.changed = False
        self._names: dict[str, bytes] = {}

    async def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide hits. Nothing is lost, as no other client changes a state within the transaction."""
        self.now = now
        loaded = [self._read(hit[1]) for hit in hits]
        decisions, writes = self.decide(hits, loaded, self._clock if now is None else now)
        if consume:
            self._keep(writes)
        return decisions

    async def run(self) -> None:
        """Make corrections."""
        states = {key: self._read(key) for key in self.used_keys()}
        self._keep(self.make_corrections(states, self._clock if self.now is None else self.now))
        self.left = ()

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        return [self._read(key) for key in keys], self._clock

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        self._keep(writes)
        return ()

    def _read(self, key: str) -> bytes | None:
        name = self._names[key] = state_name(key)
        data = self._txn.get(name)
        return None if data is None else data[EXPIRY:]

    def _keep(self, writes: Sequence[Write]) -> None:
        """Write states that were read before."""
        for key, data, _, lasts_us in writes:
            if data is None:
                self._delete([key])
            else:
                self._put(self._names[key], (self._clock + lasts_us).to_bytes(EXPIRY, "big") + data)

    def _put(self, name: bytes, data: bytes) -> None:
        """Write a record. It may not grow when there is no more room, but for the digits of a few numbers."""
        if self._is_full:
            before = self._txn.get(name)
            if before is None or len(data) > max(len(before), _SMALL):
                raise _NewKeyError("seven eighths are used")
        self.changed = True
        self._txn.put(name, data)

    async def forget(self, keys: Iterable[str]) -> None:
        self._delete(keys)

    def _delete(self, keys: Iterable[str]) -> None:
        self.changed = True
        for key in keys:
            self._txn.delete(state_name(key))

    async def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        """Return the keys of a page, without those too long for a name. Its cursor is the last key before it."""
        begin, after = (STATE + b":" + text.encode("utf-8", "surrogatepass") for text in (prefix, cursor))
        with self._txn.cursor() as entries:
            if not entries.set_range(max(begin, after + b"\0" * bool(cursor))):
                return KeyPage([], None)
            names = takewhile(lambda name: name.startswith(begin), entries.iternext(values=False))
            keys = [name[len(STATE) + 1 :].decode("utf-8", "surrogatepass") for name in islice(names, MAX_LISTED)]
        return KeyPage(keys, keys[-1] if len(keys) == MAX_LISTED else None)

    async def ping(self) -> None:
        """Write a record that no decision needs: reading may work where writing does not."""
        self.changed = True
        self._txn.put(_PING, self._clock.to_bytes(8, "big"))


def state_name(key: str) -> bytes:
    """Return the name of the state of a key. No two keys share one."""
    data = key.encode("utf-8", "surrogatepass")
    name = STATE + b":" + data
    if len(name) <= _MAX_NAME:
        return name
    return STATE + b"#" + blake2b(data, digest_size=16).hexdigest().encode()


class Transactions:
    """The transactions of an environment, for the holder of its lock."""

    def __init__(self, env: lmdb.Environment, pages: int, wall_at_zero: int) -> None:
        self._env = env
        self._pages = pages
        self._wall_at_zero = wall_at_zero
        self._is_full = self._has_logged = False
        self._writes = 0

    def run(self, work: Callable[[LmdbCall], Any], now: int | None) -> Any:
        """Do an operation, and commit its changes. When the map is full, try again with the room of expired records.

        ``now`` is the time of the store in microseconds. By default it is that of the clock of all processes.
        """
        now, is_second = now or (machine.monotonic_ns() + self._wall_at_zero) // 1000, False
        while True:
            txn = self._env.begin(write=True)
            try:
                records = LmdbCall(txn, self._is_full, now)
                result = run_blocking(work(records))
                if records.changed:
                    self._writes += 1
                    if self._writes % _SWEPT_EVERY == 1:
                        _sweep(txn, now)
                    if self._writes % _MEASURED_EVERY == 1:
                        self._measure()
                    txn.commit()
                return result
            except lmdb.MapFullError as error:
                if is_second:
                    kind = NoRoomError if isinstance(error, _NewKeyError) else StoreError
                    problem = "Use a larger size. Or a reader that does not end, such as mdb_copy, keeps old pages"
                    raise kind(f"lmdb://{self._env.path()} is full. {problem}") from None
            finally:
                txn.abort()  # without effect after a commit
            self._make_room(now)
            is_second = True

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
