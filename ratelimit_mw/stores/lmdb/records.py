"""The states that one transaction sees, and their names.

The name of a record begins with one prefix, and its data with the time of expiry. An expired state equals a fresh one.

Examples:
    \\xffratelimit_mw:meta:...                                    the clock of all processes, the place of the sweep
    \\xffratelimit_mw:state:1|api|gcra|1m|{ip=192.0.2.7}          the state of one key
    \\xffratelimit_mw:state#1|api|gcra|1m|<digest>                the state of a key that is too long for LMDB
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Final

import lmdb

from ...decision import Decision, Hit, prefix_of
from ..base import LOOKED_AT, KeyPage
from ..bytestore import ByteCall, Write, decide_bytes

PREFIX: Final = b"\xffratelimit_mw:"
"""No text in UTF-8 begins with the byte 255."""
META: Final = PREFIX + b"meta:"
STATE: Final = PREFIX + b"state"
EXPIRY: Final = 8
"""The bytes of the time at the start of each record from ``STATE`` on."""
_MAX_NAME: Final = 511
_READABLE: Final = 200
_PING: Final = META + b"ping"
_MAX_TIME: Final = 2**63 - 1
_SMALL: Final = 128


class Records(ByteCall):
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
        at = self._clock if now is None else now
        decisions, writes = decide_bytes(hits, [self._read(hit[1]) for hit in hits], at, now, self.title)
        if consume and writes:
            self._write(writes)
        return decisions

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        return [self._read(key) for key in keys], self._clock

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        self._write(writes)
        return ()

    def _read(self, key: str) -> bytes | None:
        name = self._names[key] = state_name(key)
        data = self._txn.get(name)
        return None if data is None else data[EXPIRY:]

    def _write(self, writes: Sequence[Write]) -> None:
        """Write states that were read before."""
        for key, data, _, lasts_us in writes:
            if data is None:
                self._delete([key])
            else:
                until = self._clock + lasts_us
                self._put(self._names[key], (until if until < _MAX_TIME else _MAX_TIME).to_bytes(EXPIRY, "big") + data)

    def _put(self, name: bytes, data: bytes) -> None:
        """Write a record. It may not grow when there is no more room, but for the digits of a few numbers."""
        if self._is_full:
            before = self._txn.get(name)
            if before is None or len(data) > max(len(before), _SMALL):
                raise lmdb.MapFullError("seven eighths are used")
        self.changed = True
        self._txn.put(name, data)

    async def forget(self, keys: Iterable[str]) -> None:
        self._delete(keys)

    def _delete(self, keys: Iterable[str]) -> None:
        self.changed = True
        for key in keys:
            self._txn.delete(state_name(key))

    async def list_keys(self, prefix: str, place: str = "") -> KeyPage:
        """Return the keys of a page, without those too long for a name. Its place is the last key before it."""
        begin, after = (STATE + b":" + text.encode("utf-8", "surrogatepass") for text in (prefix, place))
        with self._txn.cursor() as cursor:
            if not cursor.set_range(max(begin, after + b"\0" * bool(place))[:_MAX_NAME]):
                return KeyPage([], None)
            names = takewhile(lambda name: name.startswith(begin), cursor.iternext(values=False))
            keys = [name[len(STATE) + 1 :].decode("utf-8", "surrogatepass") for name in islice(names, LOOKED_AT)]
        return KeyPage(keys, keys[-1] if len(keys) == LOOKED_AT else None)

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
    limit = prefix_of(key).encode("utf-8", "surrogatepass")[:_READABLE]
    return STATE + b"#" + limit + blake2b(data, digest_size=16).hexdigest().encode()
