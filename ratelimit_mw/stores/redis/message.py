"""One script call: operations packed as keys and numbers, and their results read from one flat reply.

The counterpart of shell.lua. This file opens no connections.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...algorithms.limit import Limit
from ...decision import Decision, Hit, SlotCost
from ...errors import StateError, StoreError
from ...receipt import Correction
from .client.errors import Command, MovingSlotError, as_store_error
from .script import PACKED, LuaAlgorithm, build_script

if TYPE_CHECKING:
    from .client.server import Target

_CORRECT: Final = 5
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


@cache
def _with(algorithms: frozenset[LuaAlgorithm], lua: LuaAlgorithm) -> frozenset[LuaAlgorithm]:
    """Return one object for equal sets: its hash, by which the script is found, is computed once."""
    return algorithms | {lua}


class Message:
    """The keys and arguments of one call, to which its operations add themselves."""

    def __init__(self, name: KeyName, operations: Sequence[Operation]) -> None:
        self._limits: list[Any] = []
        self._algorithms: frozenset[LuaAlgorithm] = frozenset()
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
        if lua not in self._algorithms:
            self._algorithms = _with(self._algorithms, lua)
        return len(self._limits)

    @property
    def by_hash(self) -> Command:
        """The command that names the script by its hash."""
        return (b"EVALSHA", build_script(self._algorithms).sha, *self._arguments)

    @property
    def by_text(self) -> Command:
        """The command that carries the script."""
        return (b"EVAL", build_script(self._algorithms).text, *self._arguments)

    @property
    def slot(self) -> int | None:
        """The slot of all keys in a cluster, if it is known."""
        return self._operations[0].slot

    @property
    def _arguments(self) -> Sequence[Any]:
        return (len(self.keys), *self.keys, _pack((self._limits, self.numbers_sent)))

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

    __slots__ = ("items", "kind", "now", "size", "slot", "ttl_ms")
    slot: int | None
    """The slot of the keys in a cluster, if the sender has computed it."""

    def __init__(self, kind: int, items: Sequence[Any], now: int | None, size: int = 0) -> None:
        self.kind = kind
        self.items = items
        self.now = now
        # The second lets a server that is held up in the middle of a script find all that the script has written.
        self.ttl_ms = 1_000 if now is None else _DAY_MS
        self.size = size
        self.slot = None

    @property
    def key(self) -> str:
        """One of the keys."""
        return self.key_at(0)

    def key_at(self, index: int) -> str:
        item = self.items[index]
        return item if isinstance(item, str) else str(item.key)

    def split(self) -> list[Operation]:
        """Return one operation for each key."""
        parts = []
        for item in self.items:
            part = copy.copy(self)
            part.items, part.size = [item], self.size // len(self.items)
            parts.append(part)
        return parts

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
        self.slot = None

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

    async def ask_each(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        """Return the results of the operations of one request, or their ``StoreError``."""
        return await self.ask_at_once(operations, deadline)

    async def ask_at_once(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        """Send operations that have their ``slot``. Those of one slot share a message, and all messages go out."""
        by_slot: dict[int | None, list[Operation]] = {}
        for each in operations:
            if (group := by_slot.get(each.slot)) is None:
                by_slot[each.slot] = [each]
            else:
                group.append(each)
        results = await self._ask_groups(list(by_slot.values()), deadline)
        if len(operations) > len(by_slot):
            apart = [each for each, result in results.items() if type(result) is MovingSlotError]
            results |= await self._ask_groups([[each] for each in apart], deadline)
        return [results[each] for each in operations]

    async def _ask_groups(self, groups: Sequence[Sequence[Operation]], deadline: float) -> dict[Operation, Any]:
        keys, results = self.keys, dict[Operation, Any]()
        messages = [Message(keys, group) for group in groups]
        try:
            replies = await self.target.ask_each(messages, deadline)
        except Exception as error:
            replies = [error] * len(messages)
        for group, message, reply in zip(groups, messages, replies, strict=True):
            if isinstance(reply, Exception):
                results |= dict.fromkeys(group, as_store_error(reply))
            else:
                results.update(zip(group, message.read(reply), strict=True))
        return results
