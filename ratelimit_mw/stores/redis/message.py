"""One script call: operations packed as keys and numbers, and their results read from one flat reply.

The counterpart of shell.lua. This file opens no connections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...algorithms.limit import Limit
from ...decision import Decision, Hit, SlotCost
from ...errors import StateError, StoreError
from ...receipt import Correction
from .client.errors import as_store_error
from .script import PACKED, LuaAlgorithm, Script, build_script

if TYPE_CHECKING:
    from .client.server import Target

_CORRECT: Final = 5
READ: Final = 6
FORGET: Final = 7
PROBE: Final = 8
_SCAN: Final = 9
_FIELDS: Final = 5  # of a decision: remaining, retry, reset, at, delay
_DAY_MS: Final = 86_400_000
_LUA_EXACT: Final = 1 << 53


def _pack_slot_cost(cost: SlotCost) -> tuple[int, int]:
    return int(cost), cost.slot


_pack = msgspec.msgpack.Encoder(enc_hook=_pack_slot_cost).encode


KeyName = Callable[[str], bytes]
"""The name of a key in Redis."""


def key_name(prefix: str, key: str) -> bytes:
    """Return the prefix and the key."""
    return (prefix + key).encode("utf-8", "surrogatepass")


def text_of(prefix: str, name: bytes) -> str:
    """Return the key of a name in Redis. Bytes that are no text are replaced: no key of this package has them."""
    try:
        text = name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = name.decode("utf-8", "replace")
    return text.removeprefix(prefix)


class Message:
    """The keys and arguments of one call, to which its operations add themselves."""

    def __init__(self, name: KeyName, operations: Sequence[Operation]) -> None:
        self._limits: list[Any] = []
        self._algorithms: set[LuaAlgorithm] = set()
        self._operations = operations
        self.name = name
        self.keys: list[bytes] = []
        self.numbers_sent: list[int | str | None] = []
        self.numbers: dict[Limit, int] = {}
        for each in operations:
            self.numbers_sent += (each.kind, each.now, each.ttl_ms, len(each.items))
            each.join(self)

    def number(self, limit: Limit) -> int:
        """Return the number of a limit in this message. Numbers start at 1, as in Lua."""
        number = self.numbers[limit] = self.add(*PACKED[limit])
        return number

    def add(self, packed: Any, lua: LuaAlgorithm) -> int:
        """Return the number of a packed limit that `lua` decides."""
        self._limits.append(packed)
        self._algorithms.add(lua)
        return len(self._limits)

    @property
    def script(self) -> Script:
        return build_script(frozenset(self._algorithms))

    @property
    def arguments(self) -> list[Any]:
        """The arguments of EVALSHA after the script."""
        return [len(self.keys), *self.keys, _pack((self._limits, self.numbers_sent))]

    def read(self, reply: Sequence[Any]) -> list[Any]:
        """Return the result of each operation, or its own ``StoreError``."""
        results: list[Any] = []
        position = 0
        for operation in self._operations:
            head = reply[position]
            position += 1
            if not isinstance(head, bytes):
                results.append(operation.read(reply, position))
                position += operation.size
            elif head == b"CONFLICT":
                results.append(ConflictError("Redis: another process was faster"))
            elif head.startswith(b"STATE "):
                results.append(undecodable(operation.key_at(int(head[6:]) - 1)))
            else:
                results.append(StoreError(f"Redis: {head.decode('utf-8', 'replace')}"))
        return results


class Operation(ABC):
    """One part of a message, whose keys are in one slot. It reads its ``size`` values of the reply."""

    __slots__ = ("items", "kind", "now", "size", "ttl_ms")

    def __init__(self, kind: int, items: Sequence[Any], now: int | None, size: int = 0) -> None:
        self.kind = kind
        self.items = items
        self.now = now
        # The second lets a server that is held up in the middle of a script find all that the script has written.
        self.ttl_ms = 1_000 if now is None else _DAY_MS
        self.size = size

    @property
    def key(self) -> str:
        """One of the keys."""
        return self.key_at(0)

    def key_at(self, index: int) -> str:
        item = self.items[index]
        return item if isinstance(item, str) else str(item.key)

    @abstractmethod
    def join(self, message: Message) -> None: ...

    @abstractmethod
    def read(self, reply: Sequence[Any], start: int) -> Any: ...


class HitOperation(Operation):
    """All hits of a request, or, with ``is_rejected``, those in one slot of a request that another slot rejected."""

    __slots__ = ()

    def __init__(self, hits: Sequence[Hit], now: int | None, consume: bool, is_rejected: bool = False) -> None:
        # Sets the attributes here, because a call of the base class would cost 1% of a request.
        self.kind = (1 if consume else 2) + (2 if is_rejected else 0)
        self.items = hits
        self.now = now
        self.ttl_ms = 1_000 if now is None else _DAY_MS
        self.size = _FIELDS * len(hits)

    def join(self, message: Message) -> None:
        arguments, numbers = message.numbers_sent, message.numbers
        for limit, key, cost in self.items:
            arguments.append(numbers.get(limit) or message.number(limit))
            arguments.append(cost)
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[Decision]:
        decisions = []
        for hit in self.items:
            remaining, retry, reset, at, delay = reply[start : start + _FIELDS]
            start += _FIELDS
            # A time that a Lua number cannot hold exactly comes as text.
            decision = Decision(retry == 0, remaining, None if retry == -1 else int(retry), int(reset), at, int(delay))
            decision.hit = hit
            decisions.append(decision)
        return decisions


class CorrectOperation(Operation):
    def __init__(self, changes: Sequence[Correction], now: int | None) -> None:
        super().__init__(_CORRECT, changes, now)

    def join(self, message: Message) -> None:
        arguments = message.numbers_sent
        for limit, key, cost, charge in self.items:
            arguments += (message.numbers.get(limit) or message.number(limit), cost)
            arguments += (None,) * 3 if charge is None else (charge[0], charge[1], number_or_text(charge[2]))
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[int]:
        return [reply[start - 1]] * len(self.items)


class KeyOperation(Operation):
    """Read the texts of keys and the time, delete keys, or probe whether the server takes a write now."""

    def __init__(self, kind: int, keys: Sequence[str], now: int | None = None) -> None:
        super().__init__(kind, keys, now, len(keys) if kind == READ else 0)

    def join(self, message: Message) -> None:
        message.keys += map(message.name, self.items)

    def read(self, reply: Sequence[Any], start: int) -> tuple[int, list[bytes | None]]:
        return reply[start - 1], list(reply[start : start + self.size])


class ScanOperation(Operation):
    """Look at some keys of the server that has ``key``. The result is the place to go on, and the names that match."""

    def __init__(self, key: str, place: int, pattern: str, count: int) -> None:
        super().__init__(_SCAN, [key], None, 1)
        self._arguments = (str(place), pattern, count)

    def join(self, message: Message) -> None:
        message.keys += map(message.name, self.items)
        message.numbers_sent += self._arguments

    def read(self, reply: Sequence[Any], start: int) -> tuple[int, list[bytes]]:
        place, names = reply[start]
        return int(place), names


def number_or_text(number: int) -> int | str:
    """Return a number as Lua can hold it exactly, else as text."""
    return number if number < _LUA_EXACT else str(number)


def undecodable(key: str) -> StateError:
    return StateError("Redis: a key does not hold a state of its algorithm", [key])


class ConflictError(StoreError):
    """Another process changed the state between reading and writing."""


class Caller:
    """Sends operations to the servers: each in a call of its own, unless a subclass replaces ``ask``."""

    def __init__(self, target: Target, keys: KeyName, clock: Callable[[], float]) -> None:
        self.target = target
        self.time = clock
        """The clock of deadlines, in seconds."""
        self.timeout_at: Callable[[float], AbstractContextManager[Any]] = nullcontext
        """Bounds calls on an event loop. A blocking call is bounded by its socket."""
        self.ask: Callable[..., Any] = self.ask_alone
        """The result of an operation, to be awaited. Raises ``StoreError`` at the deadline."""
        self.keys = keys

    async def ask_alone(self, operation: Operation, deadline: float) -> Any:
        """Return the result of an operation, in a call of its own that the caller bounds."""
        message = Message(self.keys, (operation,))
        try:
            (result,) = message.read(await self.target.ask(message, deadline))
        except Exception as error:
            raise as_store_error(error) from error
        if isinstance(result, StoreError):
            raise result
        return result

    async def ask_all(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        """Return the results of operations that share a call, or their ``StoreError``."""
        message = Message(self.keys, operations)
        return message.read(await self.target.ask(message, deadline))
