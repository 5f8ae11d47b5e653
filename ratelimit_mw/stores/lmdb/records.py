"""The records of one transaction: find, keep, share and delete states. Decides nothing and commits nothing.

A record is its time of expiry (8 bytes) and the state. Only the sweep reads the expiry: an expired state equals a fresh
one. When room is short, a new key shares one of the states of its limit with other keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Any, Final

import lmdb

from ...algorithms.limit import Limit, prefix_of
from ..base import LOOKED_AT, KeyPage
from .keys import EXPIRY, MAX_NAME, META, SHARE, STATE, digest, state_name, text_of

_PING: Final = META + b"ping"
_MAX_TIME: Final = 2**63 - 1
_SMALL: Final = 128
_NOWHERE: Final = b""
StoredState = tuple[bytes, Any]
"""The name of the record to write, if any, and the own or shared state of the key."""


class Records:
    """The states that the current write transaction sees. ``changed`` asks for a commit.

    All processes use the same ``secret`` and the same number of shared states of a limit.
    """

    def __init__(
        self, txn: lmdb.Transaction[bytes], shares: bool, is_full: bool, now: int, secret: bytes, shared_states: int
    ) -> None:
        self.txn = txn
        self.now = now
        self.changed = False
        self._shares = shares
        self._is_full = is_full
        self._secret = secret
        self._shared_states = shared_states

    def find(self, limit: Limit, key: str) -> StoredState:
        name = state_name(STATE, key, self._secret)
        if (data := self.txn.get(name)) is not None:
            return name, limit.algorithm.load(data[EXPIRY:])
        if limit.is_ban:  # a neighbour's ban is no ban
            return _NOWHERE if self._shares else name, None
        shared_name = self._shared_name(limit.prefix, key)
        data = self.txn.get(shared_name)
        state = None if data is None else limit.algorithm.load(data[EXPIRY:])
        return shared_name if self._shares else name, state

    def keep(self, limit: Limit, key: str, name: bytes, state: Any, span: int) -> None:
        """Write a state that expires in ``span`` microseconds. None is the fresh state."""
        if state is None:
            self.delete([key])
        elif name != _NOWHERE:
            until = min(self.now + span, _MAX_TIME)
            self._put(name, until.to_bytes(EXPIRY, "big") + limit.algorithm.dump(state))

    def _put(self, name: bytes, data: bytes) -> None:
        """Write a record. It may not grow when there is no more room, but for the digits of a few numbers."""
        if self._is_full:
            before = self.txn.get(name)
            if before is None or len(data) > max(len(before), _SMALL):
                raise lmdb.MapFullError("seven eighths are used")
        self.changed = True
        self.txn.put(name, data)

    def delete(self, keys: Iterable[str]) -> None:
        """Make keys fresh, and with them the keys that share their states."""
        self.changed = True
        for key in keys:
            if not self.txn.delete(state_name(STATE, key, self._secret)):
                self.txn.delete(self._shared_name(prefix_of(key), key))

    def read_document(self, key: str) -> bytes | None:
        """Return the data of a document; None where there is none."""
        data = self.txn.get(state_name(STATE, key, self._secret))
        return None if data is None else data[EXPIRY:]

    def write_document(self, key: str, data: bytes | None, before: bytes | None) -> bool:
        """Write or delete a document that still is ``before``. It never expires."""
        if self.read_document(key) != before:
            return False
        name = state_name(STATE, key, self._secret)
        if data is None:
            self.changed = True
            self.txn.delete(name)
        else:
            self._put(name, _MAX_TIME.to_bytes(EXPIRY, "big") + data)
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

    def _shared_name(self, prefix: str, key: str) -> bytes:
        """Choose the shared state of a key by a keyed hash, so that no client can choose its neighbours."""
        hashed = digest(key.encode("utf-8", "surrogatepass"), self._secret)
        number = int.from_bytes(hashed[:8], "big") % self._shared_states
        return state_name(SHARE, f"{prefix}{number:04x}", self._secret)
