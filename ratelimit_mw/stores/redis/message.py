"""What one call says: requests put together as keys and numbers, and their answers read from one flat reply.

The counterpart of shell.lua. Knows neither connections nor event loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from ...algorithms.limit import Limit
from ...decision import Correction, Decision, Hit
from ...errors import StoreError
from .script import Script, Twin, packed_limit, script_of, twin_of

__all__ = [
    "Changes",
    "ConflictError",
    "Hits",
    "Keys",
    "Known",
    "Message",
    "Request",
    "answers",
    "least",
    "number_or_text",
]

_CORRECT: Final = 5
_FIELDS: Final = 5  # of a decision: remaining, retry, reset, at, delay
_DAY: Final = 86_400_000  # milliseconds
_EXACT: Final = 1 << 53
_LIMITS_KNOWN: Final = 10_000

_pack = msgspec.msgpack.Encoder().encode


class Keys:
    """The names of keys in the server: a prefix and the key, in which nothing can choose a cluster's slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, key: str) -> bytes:
        if "{" in key or "%" in key:
            key = key.replace("%", "%25").replace("{", "%7B")
        return (self.prefix + key).encode("utf-8", "surrogatepass")


class Known(dict[Limit, tuple[msgspec.Raw, Twin] | None]):
    """The limits that were seen, each ready to be put into a message; None for an algorithm without a twin."""

    def __missing__(self, limit: Limit) -> tuple[msgspec.Raw, Twin] | None:
        if len(self) >= _LIMITS_KNOWN:
            self.clear()
        twin = twin_of(limit.algorithm)
        found = self[limit] = None if twin is None else (packed_limit(limit, twin), twin)
        return found


class Message:
    """One call in the making."""

    __slots__ = ("_known", "_limits", "_twins", "asked", "keys", "name", "numbers")

    def __init__(self, known: Known, name: Keys) -> None:
        self._known = known
        self._limits: list[Any] = []
        self._twins: set[Twin] = set()
        self.name = name
        self.keys: list[bytes] = []
        self.asked: list[int | str | None] = []
        self.numbers: dict[Limit, int] = {}

    def number(self, limit: Limit) -> int:
        """The number of a limit in this message; they count from 1, as in Lua."""
        found = self._known[limit]
        if found is None:
            raise TypeError(f"{limit!r} has no twin in Lua")
        number = self.numbers[limit] = self.add(*found)
        return number

    def add(self, packed: Any, twin: Twin) -> int:
        """The number of what is packed and decided by ``twin``."""
        self._limits.append(packed)
        self._twins.add(twin)
        return len(self._limits)

    @property
    def script(self) -> Script:
        return script_of(frozenset(self._twins))

    @property
    def arguments(self) -> list[Any]:
        """What follows the script in EVALSHA."""
        return [len(self.keys), *self.keys, _pack((self._limits, self.asked))]


class Request(Protocol):
    """One thing to ask: it joins a message, and reads its ``size`` values of the reply, which follow its time."""

    @property
    def size(self) -> int: ...

    @property
    def key(self) -> str:
        """One of its keys, which are all in one slot."""
        ...

    def join(self, message: Message) -> None: ...

    def read(self, reply: Sequence[Any], start: int) -> Any: ...


class Hits:
    """Hits of one request of a user's: all that it has, or, when it is ``rejected`` elsewhere, those in one place."""

    __slots__ = ("hits", "least", "now", "rejected", "size", "what")

    @property
    def key(self) -> str:
        return self.hits[0].key

    def __init__(self, hits: Sequence[Hit], now: int | None, consume: bool, least: int, rejected: bool = False) -> None:
        self.hits = hits
        self.now = now
        self.least = least
        self.rejected = rejected
        self.what = (1 if consume else 2) + (2 if rejected else 0)
        self.size = _FIELDS * len(hits)

    def join(self, message: Message) -> None:
        asked, numbers = message.asked, message.numbers
        asked += (self.what, self.now, self.least, len(self.hits))
        for limit, key, cost in self.hits:
            asked.append(numbers.get(limit) or message.number(limit))
            asked.append(cost)
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[Decision]:
        decisions = []
        for hit in self.hits:
            remaining, retry, reset, at, delay = reply[start : start + _FIELDS]
            start += _FIELDS
            # A time that no number of Lua's holds exactly comes as text. Only what is allowed may come again at once.
            decision = Decision(retry == 0, remaining, None if retry == -1 else int(retry), int(reset), at, int(delay))
            decision.hit = hit
            decisions.append(decision)
        return decisions


class Changes:
    """Corrections after the fact."""

    __slots__ = ("changes", "least", "now", "size")

    @property
    def key(self) -> str:
        return self.changes[0].key

    def __init__(self, changes: Sequence[Correction], now: int | None, least: int) -> None:
        self.changes = changes
        self.now = now
        self.least = least
        self.size = 0

    def join(self, message: Message) -> None:
        message.asked += (_CORRECT, self.now, self.least, len(self.changes))
        for limit, key, cost, consumed in self.changes:
            number = message.numbers.get(limit) or message.number(limit)
            message.asked += (number, cost)
            message.asked += (
                (None,) * 3 if consumed is None else (consumed[0], consumed[1], number_or_text(consumed[2]))
            )
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[int]:
        return [reply[start - 1]] * len(self.changes)


def number_or_text(number: int) -> int | str:
    """What Lua's numbers cannot hold exactly, as text."""
    return number if number < _EXACT else str(number)


def least(now: int | None) -> int:
    """Milliseconds that a key stays at least: a day when the time is the caller's.

    Else a second, so that a server that is held up finds all that one call has written until it ends.
    """
    return 1_000 if now is None else _DAY


class ConflictError(StoreError):
    """Somebody else has changed the state meanwhile."""


def answers(requests: Sequence[Request], reply: Sequence[Any]) -> list[Any]:
    """The answer to each request of a call, or the ``StoreError`` that is its own."""
    found: list[Any] = []
    place = 0
    for request in requests:
        head = reply[place]
        place += 1
        if isinstance(head, bytes):
            found.append(_problem(head.decode("utf-8", "replace")))
            continue
        found.append(request.read(reply, place))
        place += request.size
    return found


def _problem(text: str) -> StoreError:
    return ConflictError("Redis: somebody else was faster") if text == "CONFLICT" else StoreError(f"Redis: {text}")
