"""One script call: the command that carries operations on keys, and their results read from one flat reply.

The counterpart of shell.lua. This file opens no connections.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from ...decision import Decision, Hit
from ...errors import StateError, StoreError
from .client.errors import Command, as_store_error
from .packing import FORMS, Packed, Packing
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


class Message(ABC):
    """The call that decides one operation, or several."""

    __slots__ = ("names", "slot")
    names: Sequence[bytes]
    """The names of all keys in Redis."""
    slot: int | None
    """The slot of all keys in a cluster, if it is known."""

    @property
    def command(self) -> Command:
        """The command that names the script by its hash."""
        script, packed = self.pack()
        return (b"EVALSHA", script.sha, len(self.names), *self.names, packed)

    @property
    def by_text(self) -> Command:
        """The command that carries the script."""
        script, packed = self.pack()
        return (b"EVAL", script.text, len(self.names), *self.names, packed)

    @abstractmethod
    def pack(self) -> Packed:
        """Return the script and its packed argument."""

    @abstractmethod
    def receive(self, reply: Sequence[Any]) -> None:
        """Give each operation its result, or its own ``StoreError``."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Give all operations the error of the call."""


class Operation(Message):
    """One part of a message, whose keys are in one slot, and its result. Alone, it is the message.

    Args:
        kind: The number of the operation in the script.
        items: The hits, the corrections or the keys.
        names: The names of their keys in Redis.
        now: The time in whole microseconds; None means the server's own time.
        slot: The slot of the keys in a cluster, if it is known.
        positions: The places of the items in their request.
    """

    __slots__ = (
        *("items", "kind", "now", "positions", "result", "stops", "ttl_ms"),
        *("deadline", "future", "pending"),
    )
    future: asyncio.Future[Any]
    """Done when ``pending`` is empty: a list that the operations of one request share. A lone operation has none."""
    deadline: float

    def __init__(
        self,
        kind: int,
        items: Sequence[Any],
        names: Sequence[bytes],
        now: int | None = None,
        slot: int | None = None,
        positions: Sequence[int] = (),
    ) -> None:
        self.kind = kind
        self.items = items
        self.names = names
        self.now = now
        # The second lets a server that is held up in the middle of a script find all that the script has written.
        self.ttl_ms = 1_000 if now is None else _DAY_MS
        self.slot = slot
        self.positions = positions
        self.pending: list[None] | None = None
        self.result: Any = None
        """The values that ``read`` has taken from the reply, or a ``StoreError``."""
        self.stops = False
        """Whether the request cannot pass: a limit rejects, or the result is an error."""

    def key_at(self, index: int) -> str:
        item = self.items[index]
        return item if isinstance(item, str) else str(item.key)

    def split(self) -> list[Self]:
        """Return one operation for each key."""
        parts = []
        for i in range(len(self.items)):
            part = copy.copy(self)
            part.items, part.names, part.positions = [self.items[i]], [self.names[i]], self.positions[i : i + 1]
            part.stops = False
            parts.append(part)
        return parts

    def pack(self) -> Packed:
        return Packing((self,)).packed

    def receive(self, reply: Sequence[Any]) -> None:
        self.take(reply, 0)

    def take(self, reply: Sequence[Any], position: int) -> int:
        """Take the result from a place in the reply, and return the place of the next one."""
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

    def pack(self) -> Packed:
        if self.now is not None:
            return super().pack()
        parts: list[Any] = [self.kind]
        for limit, _, cost in self.items:
            if type(cost) is not int:  # the cost of slots has their id
                return super().pack()
            parts += (limit, cost)
        form = tuple(parts)
        return FORMS.get(form) or FORMS.keep(form, super().pack())

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
            decision = Decision(retry == 0, remaining, None if retry == -1 else int(retry), int(reset), at, int(delay))
            decision.hit = hit
            decisions.append(decision)
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
    return StateError("Redis: a key does not hold a state of its algorithm", [key])


class ConflictError(StoreError):
    """Another process changed the state between reading and writing."""


class SharedMessage(Message):
    """The call that decides several operations, one after another."""

    __slots__ = ("_operations",)

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self.names = [name for each in operations for name in each.names]
        self.slot = operations[0].slot

    def pack(self) -> Packed:
        return Packing(self._operations).packed

    def receive(self, reply: Sequence[Any]) -> None:
        position = 0
        for each in self._operations:
            position = each.take(reply, position)

    def fail(self, error: Exception) -> None:
        for each in self._operations:
            each.fail(error)


def messages_of(groups: Iterable[Sequence[Operation]]) -> list[Message]:
    """Return one message for the operations of each group."""
    return [group[0] if len(group) == 1 else SharedMessage(group) for group in groups]


def have_lua(hits: Iterable[Hit]) -> bool:
    """Return whether Lua decides all hits."""
    return None not in [PACKED[hit[0]] for hit in hits]


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
