"""States in one transaction: found, kept, shared when room is short, dropped. Decides nothing and commits nothing.

A record is the time at which it may go (8 bytes), what kind it is (1), and the state. Only the sweep reads the time:
what may go is as good as fresh, so nobody else has to look.

From some point on room is short: a new key then shares one of the states of its limit with others. When it is
shorter still nothing grows: what would have to raises ``NoRoomError``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import lmdb

from ...algorithms.limit import Limit, prefix_of
from ...algorithms.window_log import Series
from ...clock import SECOND
from . import pages as series
from .keys import META, page_name, share_name, state_name

__all__ = ["FROZEN", "ROOMY", "SHARING", "Found", "Identity", "NoRoomError", "Records"]

ROOMY, SHARING, FROZEN = range(3)
_COMPACT: Final = b"c"
_SERIES: Final = b"l"
_PAGE: Final = b"p"
_STAMP: Final = 9
_SMALL: Final = 128
"""Bytes of a record that may come and go even where nothing grows."""
_SHARED_UNTIL: Final = META + b"shared-until"
_PING: Final = META + b"ping"
_FOREVER: Final = 2**63 - 1
_SHARED_SLACK: Final = 60 * SECOND


class NoRoomError(Exception):
    """Something would have to grow where nothing may."""


class Identity(NamedTuple):
    """What all processes must agree on: a secret of the environment, and how many states of a limit are shared."""

    secret: bytes
    slots: int


Found = tuple[bytes, int, Any]
"""The name of a key's own record, its length (0: none), and the state: its own, else that which it shares, if any."""


class Records:
    """The states as a write transaction sees them: the one that was begun last."""

    __slots__ = ("_expiry", "_now", "_room", "_txn", "identity")

    _txn: lmdb.Transaction[bytes]

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._expiry = b""

    def begin(self, txn: lmdb.Transaction[bytes], room: int, now: int) -> None:
        self._txn = txn
        self._room = room
        self._now = now

    def find(self, limit: Limit, key: str) -> Found:
        name = state_name(key, self.identity.secret)
        data = self._txn.get(name)
        if data is not None:
            return name, len(data), self._state(limit, data)
        if self._until() > self._now:
            data = self._txn.get(self._shared_name(limit.prefix, key))
        return name, 0, None if data is None else self._state(limit, data)

    def keep(self, limit: Limit, key: str, found: Found, state: Any, span: int) -> None:
        """Keep a state for ``span`` microseconds; None is the fresh one."""
        name, length, _ = found
        if state is None:
            self._txn.delete(name if length else self._shared_name(limit.prefix, key))
            return
        until = self._now + span
        if until > _FOREVER:
            until = _FOREVER
        self._expiry = until.to_bytes(8, "big")
        if not length and self._room != ROOMY:
            name, length = self._share(limit, key, until)
        if isinstance(state, Series):
            data = self._expiry + _SERIES + series.dump(state, self)
        else:
            data = self._expiry + _COMPACT + limit.algorithm.dump(state)
        if self._room == FROZEN and len(data) > max(length, _SMALL):
            raise NoRoomError
        self._txn.put(name, data)

    def ping(self) -> None:
        """Write something."""
        self._txn.put(_PING, self._now.to_bytes(8, "big"))

    def forget(self, key: str) -> None:
        """Make a key fresh, and with it those that share a state with it."""
        name = state_name(key, self.identity.secret)
        data = self._txn.get(name)
        if data is None:
            name = self._shared_name(prefix_of(key), key)
            data = self._txn.get(name)
        if data is None:
            return
        if data[8:_STAMP] == _SERIES:
            for page in series.pages_of(data[_STAMP:]):
                self.drop_page(*page)
        self._txn.delete(name)

    def _state(self, limit: Limit, data: bytes) -> Any:
        if data[8] == _SERIES[0]:
            return series.load(data[_STAMP:], self.read_page)
        return limit.algorithm.load(data[_STAMP:])

    # -- sharing --------------------------------------------------------------------------------------------

    def _share(self, limit: Limit, key: str, until: int) -> tuple[bytes, int]:
        """The name and the length of the state that a key shares from now on."""
        name = self._shared_name(limit.prefix, key)
        length = len(self._txn.get(name) or b"")
        if self._room == FROZEN and not length:
            raise NoRoomError
        if self._until() < until:
            self._txn.put(_SHARED_UNTIL, (until + _SHARED_SLACK).to_bytes(8, "big"))
        return name, length

    def _shared_name(self, prefix: str, key: str) -> bytes:
        return share_name(prefix, key, self.identity.slots, self.identity.secret)

    def _until(self) -> int:
        """Until when there may be a shared state that matters."""
        data = self._txn.get(_SHARED_UNTIL)
        return 0 if data is None else int.from_bytes(data, "big")

    # -- the pages of series --------------------------------------------------------------------------------

    def read_page(self, number: int, page: int) -> bytes | None:
        data = self._txn.get(page_name(number, page))
        return None if data is None else data[_STAMP:]

    def write_page(self, number: int, page: int, data: bytes) -> None:
        """Kept as long as the state that it is written with: all that is on it leaves before the newest does."""
        if self._room == FROZEN:
            raise NoRoomError
        self._txn.put(page_name(number, page), self._expiry + _PAGE + data)

    def drop_page(self, number: int, page: int) -> None:
        self._txn.delete(page_name(number, page))
