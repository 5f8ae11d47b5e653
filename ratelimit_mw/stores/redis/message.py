"""One script call: the command that carries operations on keys, and their results read from one flat reply.

The counterpart of shell.lua. This file opens no connections.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self, cast

from hiredis import pack_command

from ...decision import Decision, Hit
from ...errors import StateError, StoreError
from ..base import RECORDS
from .client.errors import Command, as_store_error
from .packing import FORMS, Form, Packed, Packing
from .script import PACKED

if TYPE_CHECKING:
    import asyncio

HIT: Final = 1
PEEK: Final = 2
REJECTED: Final = 2
"""Added to the kind of hits in one slot of a request that another slot rejects."""
CORRECT: Final = 5
_FIELDS: Final = 5  # of a decision: remaining, retry, reset, at, delay
_DAY_MS: Final = 86_400_000
_LUA_EXACT: Final = 1 << 53
_length_line: Final = cache(b"$%d\r\n".__mod__)
_limit_of: Final = itemgetter(0)
_limit_and_cost: Final = itemgetter(0, 2)


class Message(ABC):
    """The call that decides one operation, or several."""

    __slots__ = ("has_text", "names", "slot")
    names: Sequence[bytes]
    """The names of all keys in Redis."""
    slot: int
    """The slot of all keys: 0 without a cluster."""
    has_text: bool
    """Whether the command carries the script, for a server that lacks it, or names the script by its hash."""

    @property
    def frame(self) -> bytes:
        """``command`` as it is sent."""
        return cast("bytes", pack_command(self.command))

    @property
    def command(self) -> Command:
        (text, sha), packed = self.pack()
        script = (b"EVAL", text) if self.has_text else (b"EVALSHA", sha)
        return (*script, len(self.names), *self.names, packed)

    @abstractmethod
    def pack(self) -> Packed:
        """Return the script and its packed argument."""

    @abstractmethod
    def receive(self, reply: Sequence[Any], position: int = 0) -> int:
        """Give each operation its result, or its own ``StoreError``. Return the place after them in the reply."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Give all operations the error of the call."""


class Operation(Message):
    """One part of a message, whose keys are in one slot, and its result. Alone, it is the message.

    Args:
        kind: The number of the operation in the script.
        items: The hits, the corrections or the keys.
        names: The names of their keys in Redis.
        slot: The slot of the keys: 0 without a cluster.
        now: The time in whole microseconds; None means the server's own time.
        positions: The places of the items in their request.
    """

    __slots__ = (
        *("items", "kind", "now", "positions", "result", "stops", "ttl_ms"),
        *("deadline", "future", "pending"),
    )
    future: asyncio.Future[Any]
    """Done when ``pending`` is empty: a list that the operations of one request share. A lone operation has none."""
    pending: list[None] | None
    deadline: float
    result: Any
    """The values that ``read`` has taken from the reply, or a ``StoreError``."""
    stops: bool
    """Whether the request cannot pass: a limit rejects, or the result is an error."""

    def __init__(
        self,
        kind: int,
        items: Sequence[Any],
        names: Sequence[bytes],
        slot: int,
        now: int | None = None,
        positions: Sequence[int] = (),
    ) -> None:
        self.kind = kind
        self.items = items
        self.names = names
        self.slot = slot
        self.has_text = False
        self.now = now
        # The second lets a server that is held up in the middle of a script find all that the script has written.
        self.ttl_ms = 1_000 if now is None else _DAY_MS
        self.positions = positions

    def key_at(self, index: int) -> str:
        item = self.items[index]
        return item if isinstance(item, str) else str(item.key)

    def split(self) -> list[Self]:
        """Return one operation for each key."""
        parts = []
        for i in range(len(self.items)):
            part = copy.copy(self)
            part.items, part.names, part.positions = [self.items[i]], [self.names[i]], self.positions[i : i + 1]
            parts.append(part)
        return parts

    def pack(self) -> Packed:
        return Packing((self,)).packed

    def receive(self, reply: Sequence[Any], position: int = 0) -> int:
        head = reply[position]
        if not isinstance(head, bytes):
            return self.read(reply, position + 1)
        self.fail(self._error_of(head))
        return position + 1

    def _error_of(self, head: bytes) -> StoreError:
        if head == b"CONFLICT":
            return ConflictError("Redis: another process was faster")
        if head.startswith(b"STATE "):
            return undecodable(self.key_at(int(head[6:]) - 1))
        return StoreError(f"Redis: {head.decode('utf-8', 'replace')}")

    def fail(self, error: Exception) -> None:
        self.result, self.stops = as_store_error(error), True

    @abstractmethod
    def join(self, packing: Packing) -> None:
        """Add the numbers of each key to a message."""

    @abstractmethod
    def read(self, reply: Sequence[Any], start: int) -> int:
        """Set the result, and return the place after its values. The time is before them."""


class HitOperation(Operation):
    """All hits of a request, or those in one slot."""

    __slots__ = ()

    @property
    def frame(self) -> bytes:
        if self.has_text or (form := self._form()) is None:
            return super().frame
        parts = [form.head]
        for name in self.names:
            parts += (_length_line(len(name)), name, b"\r\n")
        parts.append(form.tail)
        return b"".join(parts)

    def pack(self) -> Packed:
        form = self._form()
        return super().pack() if form is None else form.packed

    def _form(self) -> Form | None:
        """Return the form that the message shares with all messages of the same limits and costs."""
        if self.now is not None:
            return None
        key = (self.kind, *map(_limit_and_cost, self.items))
        if (form := FORMS.get(key)) is None and not any(hit.limit.quota.concurrent for hit in self.items):
            form = FORMS.keep(key, Form(super().pack(), len(self.names)))  # the cost of slots has their id
        return form

    def join(self, packing: Packing) -> None:
        numbers, known = packing.numbers, packing.known
        for limit, _, cost in self.items:
            numbers.append(known.get(limit) or packing.number_of(limit))
            numbers.append(cost)

    def read(self, reply: Sequence[Any], start: int) -> int:
        self.result, self.stops = (decisions := []), False
        for hit in self.items:
            end = start + _FIELDS
            remaining, retry, reset, at, delay = reply[start:end]
            start = end
            # A time that a Lua number cannot hold exactly comes as text.
            wait = None if retry == -1 else int(retry)
            decisions.append(Decision(retry == 0, remaining, wait, int(reset), at, int(delay), hit))
            if retry != 0 and not hit[0].shadow:
                self.stops = True
        return start


class CorrectOperation(Operation):
    """Refunds and charges."""

    __slots__ = ()

    def join(self, packing: Packing) -> None:
        for limit, _, cost, charge in self.items:
            consumed = (None,) * 3 if charge is None else (charge[0], charge[1], number_or_text(charge[2]))
            packing.numbers += (packing.known.get(limit) or packing.number_of(limit), cost, *consumed)

    def read(self, reply: Sequence[Any], start: int) -> int:
        self.result = [reply[start - 1]] * len(self.items)
        return start


def number_or_text(number: int) -> int | str:
    """Return a number as Lua can hold it exactly, else as text."""
    return number if number < _LUA_EXACT else str(number)


def undecodable(key: str) -> StateError:
    problem = "a key does not hold a state of its algorithm"
    if key.startswith(RECORDS):
        problem = f"the key {key!r} does not hold a record"
    return StateError(f"Redis: {problem}", [key])


class ConflictError(StoreError):
    """Another process changed the state between reading and writing."""


class SharedMessage(Message):
    """The call that decides several operations, one after another."""

    __slots__ = ("operations",)

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.names = [name for each in operations for name in each.names]
        self.slot = operations[0].slot
        self.has_text = False

    def pack(self) -> Packed:
        return Packing(self.operations).packed

    def receive(self, reply: Sequence[Any], position: int = 0) -> int:
        for each in self.operations:
            position = each.receive(reply, position)
        return position

    def fail(self, error: Exception) -> None:
        for each in self.operations:
            each.fail(error)


def messages_of(operations: Sequence[Operation]) -> Sequence[Message]:
    """Return one message for the operations of each slot."""
    if len({each.slot for each in operations}) == len(operations):
        return operations
    by_slot: dict[int, list[Operation]] = {}
    for each in operations:
        by_slot.setdefault(each.slot, []).append(each)
    return [group[0] if len(group) == 1 else SharedMessage(group) for group in by_slot.values()]


def have_lua(hits: Iterable[Hit]) -> bool:
    """Return whether Lua decides all hits."""
    return None not in map(PACKED.__getitem__, map(_limit_of, hits))


def key_name(prefix: str, key: str) -> bytes:
    """Return the name of a key in Redis: the prefix and the key."""
    return (prefix + key).encode("utf-8", "surrogatepass")


def text_of(prefix: str, name: bytes) -> str:
    """Return the key of a name in Redis. Bytes that are no text are replaced: no key of this package has them."""
    try:
        text = name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = name.decode("utf-8", "replace")
    return text.removeprefix(prefix)
