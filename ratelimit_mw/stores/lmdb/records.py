"""The records of one transaction: find, keep, share and delete states. Decides nothing and commits nothing.

A record is its time of expiry (8 bytes), its kind (1 byte) and the state. Only the sweep reads the expiry: an expired
state equals a fresh one. When room is short, a new key shares one of the states of its limit with other keys. When
almost no room is left nothing grows: ``keep`` raises ``NoRoomError`` instead, and the work starts again in a ``FULL``
transaction, which writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import Any, Final

import lmdb

from ...algorithms.limit import Limit, prefix_of
from ...algorithms.window_log import Series
from ...errors import StoreError
from ..base import LOOKED_AT, KeyPage
from . import chunks
from .keys import EXPIRY, MAX_NAME, META, SHARE, STATE, digest, state_name, text_of

ROOMY, SHARING, FROZEN, FULL = range(4)
_COMPACT: Final = b"c"
_LOG: Final = b"l"
_DOCUMENT: Final = b"d"
_HEADER: Final = EXPIRY + 1
_SMALL: Final = 128
"""The bytes of a record that may still be written when nothing may grow."""
_PING: Final = META + b"ping"
_MAX_TIME: Final = 2**63 - 1


class NoRoomError(Exception):
    """A record would have to grow, but nothing may."""


_NOWHERE: Final = b""
StoredState = tuple[bytes, int, Any]
"""The name of the record to write, if any, its length (0: there is none), and the own or shared state of the key."""


class Records:
    """The states that the current write transaction sees. ``changed`` asks for a commit.

    All processes use the same ``secret`` and the same number of shared states of a limit.
    """

    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        room: int,
        now: int,
        is_over: Callable[[], bool],
        secret: bytes,
        shared_states: int,
    ) -> None:
        self.txn = txn
        self.now = now
        self.is_over = is_over
        """Returns whether the time budget is used up."""
        self.changed = False
        self.room = room
        self._secret = secret
        self._shared_states = shared_states

    def find(self, limit: Limit, key: str) -> StoredState:
        name = state_name(STATE, key, self._secret)
        data = self.txn.get(name)
        if data is not None:
            return name, len(data), self._load(limit, data)
        if limit.is_ban:  # a neighbour's ban is no ban
            return name if self.room == ROOMY else _NOWHERE, 0, None
        shared_name = self._shared_name(limit.prefix, key)
        data = self.txn.get(shared_name)
        state = None if data is None else self._load(limit, data)
        return (name, 0, state) if self.room == ROOMY else (shared_name, len(data or b""), state)

    def keep(self, limit: Limit, key: str, stored: StoredState, state: Any, span: int) -> None:
        """Write a state that expires in ``span`` microseconds. None is the fresh state."""
        if state is None:
            self.delete([key])
        if state is None or stored[0] == _NOWHERE:
            return
        self.changed = True
        name, length, _ = stored
        until = min(self.now + span, _MAX_TIME)
        expiry = until.to_bytes(EXPIRY, "big")
        if isinstance(state, Series):
            # A chunk in the window must not expire before the newest bucket that is ever beside it.
            chunk_expiry = min(until + limit.algorithm.lifetime, _MAX_TIME).to_bytes(EXPIRY, "big")
            data = expiry + _LOG + chunks.dump(state, self, chunk_expiry)
        else:
            data = expiry + _COMPACT + limit.algorithm.dump(state)
        if self.room == FROZEN and len(data) > (length and max(length, _SMALL)):
            raise NoRoomError
        self.txn.put(name, data)

    def delete(self, keys: Iterable[str]) -> None:
        """Make keys fresh, and with them the keys that share their states. Chunks are left to the sweep."""
        self.changed = True
        for key in keys:
            if not self.txn.delete(state_name(STATE, key, self._secret)):
                self.txn.delete(self._shared_name(prefix_of(key), key))

    def read_document(self, key: str) -> bytes | None:
        """Return the data of a document; None where there is none."""
        data = self.txn.get(state_name(STATE, key, self._secret))
        return None if data is None else data[_HEADER:]

    def write_document(self, key: str, data: bytes | None, before: bytes | None) -> bool:
        """Write or delete a document that still is ``before``. It never expires."""
        if self.read_document(key) != before:
            return False
        self.changed, name = True, state_name(STATE, key, self._secret)
        if data is None:
            self.txn.delete(name)
            return True
        if self.room >= FROZEN:
            raise StoreError("no room is left, so a record was not written")
        self.txn.put(name, _MAX_TIME.to_bytes(EXPIRY, "big") + _DOCUMENT + data)
        return True

    def list_keys(self, prefix: str, place: str) -> KeyPage:
        """Return the keys of a page, without those too long for a name. Its place is the last key before it."""
        begin, after = (STATE + b":" + text.encode("utf-8", "surrogatepass") for text in (prefix, place))
        with self.txn.cursor() as cursor:
            if not cursor.set_range(max(begin, after + b"\0" * bool(place))[:MAX_NAME]):
                return KeyPage([], None)
            names = takewhile(lambda name: name.startswith(begin), cursor.iternext(values=False))
            keys = list(map(text_of, islice(names, LOOKED_AT)))
        return KeyPage(keys, keys[-1] if len(keys) == LOOKED_AT else None)

    def ping(self) -> None:
        """Write a record that no decision needs: reading may work where writing does not."""
        self.changed = True
        self.txn.put(_PING, self.now.to_bytes(8, "big"))

    def _load(self, limit: Limit, data: bytes) -> Any:
        if data[EXPIRY:_HEADER] == _LOG:
            return chunks.load(data[_HEADER:], self)
        return limit.algorithm.load(data[_HEADER:])

    def _shared_name(self, prefix: str, key: str) -> bytes:
        """Choose the shared state of a key by a keyed hash, so that no client can choose its neighbours."""
        hashed = digest(key.encode("utf-8", "surrogatepass"), self._secret)
        number = int.from_bytes(hashed[:8], "big") % self._shared_states
        return state_name(SHARE, f"{prefix}{number:04x}", self._secret)
