"""Calls as data: a command or a script with its keys, and the result that is read from the reply.

Several ``Operation`` objects can share a call of ``shell.lua``. This file opens no connections.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import msgspec
from hiredis import pack_command
from redis import ResponseError

from ...clock import wall_us
from ...decision import Decision, Hit, SlotCost
from ...errors import StateError, StoreError
from ..base import RECORDS
from .errors import Command, as_store_error, error_code
from .script import PACKED, LuaAlgorithm, Script, build_script, read_script

if TYPE_CHECKING:
    import asyncio


class Kind(NamedTuple):
    """A kind of operation, numbered as in the script."""

    number: int
    consumes: bool = True


HIT: Final = Kind(1)
PEEK: Final = Kind(1, consumes=False)
CORRECT: Final = Kind(2)
SWAP: Final = read_script("swap.lua")
"""Reads values, or writes those that are still as they were read: each key with old value, new one and milliseconds."""
_FIELDS: Final = 5  # of a decision: remaining, retry, reset, at, delay
_DAY_MS: Final = 86_400_000
_LUA_EXACT: Final = 1 << 53
_MOST_PACKED: Final = 1_000
_limit_of: Final = itemgetter(0)
_limit_and_cost: Final = itemgetter(0, 2)


class Call:
    """A command or a script, ``verb``, to the server of a slot, 0 without a cluster. ``names`` are those in Redis."""

    __slots__ = ("arguments", "deadline", "future", "has_text", "items", "names", "pending", "result", "slot", "verb")
    future: asyncio.Future[Any]
    """Done when ``pending`` is empty: a list that the calls of one request share. A lone call has none."""
    pending: list[None] | None
    deadline: float
    result: Any
    """The reply, or what is read from it, or a ``StoreError``."""
    has_text: bool
    """Whether the command carries the script, for a server that lacks it, or names the script by its hash."""

    def __init__(
        self, verb: bytes | Script, keys: Sequence[Any], names: Sequence[bytes], slot: int, *arguments: Any
    ) -> None:
        self.verb = verb
        self.items = keys
        self.names = names
        self.slot = slot
        self.arguments = arguments
        self.has_text = False

    @property
    def frame(self) -> bytes:
        """``command`` as it is sent."""
        return cast("bytes", pack_command(self.command))

    @property
    def command(self) -> Command:
        verb, *arguments = self.pack()
        if isinstance(verb, bytes):
            return (verb, *self.names, *arguments)
        script = (b"EVAL", verb.text) if self.has_text else (b"EVALSHA", verb.sha)
        return (*script, len(self.names), *self.names, *arguments)

    def pack(self) -> tuple[Any, ...]:
        """Return the command or the script, and the arguments."""
        return (self.verb, *self.arguments)

    def receive(self, reply: Any) -> None:
        """Set the result."""
        self.result = reply

    def fail(self, error: Exception) -> None:
        """Set an error as the result."""
        if isinstance(error, ResponseError) and (code := error_code(error)) in ("WRONGTYPE", "STATE"):
            number = int(str(error).rpartition(" ")[2]) if code == "STATE" else 1
            error = undecodable(str(self.items[number - 1]))
        self.result = as_store_error(error)

    def split(self) -> list[Self]:
        """Return a call for each key."""
        parts = []
        for i in range(len(self.items)):
            part = copy.copy(self)
            part.items, part.names = [self.items[i]], [self.names[i]]
            parts.append(part)
        return parts


class Operation(Call):
    """One part of a call of the shell, whose keys are in one slot. Alone, it is the call."""

    __slots__ = ("kind", "now", "stops")
    stops: bool
    """Whether the request cannot pass: a limit rejects, or the result is an error."""

    def __init__(
        self, kind: Kind, items: Sequence[Any], names: Sequence[bytes], slot: int, now: int | None = None
    ) -> None:
        self.kind = kind
        self.items = items
        self.names = names
        self.slot = slot
        self.has_text = False
        self.now = now

    def pack(self) -> tuple[Script, bytes]:
        return pack_operations((self,))

    @property
    def frame(self) -> bytes:
        if self.has_text or (ends := _ends_of(self)) is None:
            return super().frame
        names = [b"$%d\r\n%b\r\n" % (len(name), name) for name in self.names]
        return b"".join((ends[0], *names, ends[1]))

    def receive(self, reply: Sequence[Any]) -> None:
        self.take(reply, 0)

    def take(self, reply: Sequence[Any], position: int) -> int:
        """Set the result, or the error of this operation. Return the place after them in the reply."""
        head = reply[position]
        if not isinstance(head, bytes):
            return self.read(reply, position + 1)
        if head.startswith(b"STATE "):
            self.fail(undecodable(str(self.items[int(head[6:]) - 1][1])))
        else:
            self.fail(StoreError(f"Redis: {head.decode('utf-8', 'replace')}"))
        return position + 1

    def fail(self, error: Exception) -> None:
        self.result, self.stops = as_store_error(error), True

    def read(self, reply: Sequence[Any], start: int) -> int:
        """Set the result, and return the place after its values. The time is before them."""
        if self.kind == CORRECT:
            self.result, self.stops = [reply[start - 1]] * len(self.items), False
            return start
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


class SharedCall(Call):
    """The call that decides several operations of one slot, one after another."""

    __slots__ = ()
    items: Sequence[Operation]

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__(b"", operations, [name for each in operations for name in each.names], operations[0].slot)

    def pack(self) -> tuple[Script, bytes]:
        return pack_operations(self.items)

    def receive(self, reply: Sequence[Any]) -> None:
        position = 0
        for each in self.items:
            position = each.take(reply, position)

    def fail(self, error: Exception) -> None:
        for each in self.items:
            each.fail(error)


def calls_of(calls: Sequence[Call]) -> Sequence[Call]:
    """Return these calls, with one for all operations of a slot."""
    if len(calls) == 1 or len({each.slot for each in calls}) == len(calls):
        return calls
    shared: dict[int, list[Operation]] = {}
    alone: list[Call] = []
    for each in calls:
        if isinstance(each, Operation):
            shared.setdefault(each.slot, []).append(each)
        else:
            alone.append(each)
    return alone + [group[0] if len(group) == 1 else SharedCall(group) for group in shared.values()]


# -- the argument of the shell -------------------------------------------------------------------------------------


def _pack_slot_cost(cost: SlotCost) -> tuple[int, int]:
    return int(cost), cost.slot


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_pack_slot_cost).encode
_ends: Final[dict[Any, tuple[bytes, bytes]]] = {}


def _ends_of(operation: Operation) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after the names, which all calls with the same limits and costs share."""
    if operation.now is not None or operation.kind == CORRECT:
        return None
    key = (operation.kind, *map(_limit_and_cost, operation.items))
    if (ends := _ends.get(key)) is None:
        # The cost of slots has their id, and a calendar the windows of the time.
        if any(hit.limit.quota.concurrent or hit.limit.quota.calendar for hit in operation.items):
            return None
        if len(_ends) >= _MOST_PACKED:
            _ends.clear()
        script, argument = operation.pack()
        count = len(operation.names)
        tail = b"$%d\r\n%b\r\n" % (len(argument), argument)
        head: Command = (b"EVALSHA", script.sha, count)
        ends = _ends[key] = b"*%d\r\n" % (count + 4) + pack_command(head)[4:], tail
    return ends


def pack_operations(operations: Sequence[Operation]) -> tuple[Script, bytes]:
    """Return the script, and its argument: the limits, and the numbers of all operations."""
    limits: list[Any] = []
    known: dict[Any, int] = {}  # the numbers of the limits, from 1, as in Lua
    algorithms: set[LuaAlgorithm] = set()
    numbers: list[Any] = []
    for each in operations:
        # The second lets a server that is held up in the middle of a script find all that the script has written.
        numbers += (*each.kind, each.now, 1_000 if each.now is None else _DAY_MS, len(each.items))
        for item in each.items:
            limit, cost = item[0], item[2]
            if (number := known.get(limit)) is None:
                packed, lua = PACKED[limit]
                if limit.quota.calendar:
                    packed = packed | {"bounds": limit.algorithm.bounds(wall_us() if each.now is None else each.now)}
                limits.append(packed)
                algorithms.add(lua)
                number = len(limits)
                if not limit.quota.calendar:  # operations may have several times
                    known[limit] = number
            numbers += (number, cost)
            if each.kind == CORRECT:
                at, consumed, delay = item[3] or (None, None, None)
                numbers += (at, consumed, delay if delay is None else number_or_text(delay))
    return build_script(frozenset(algorithms)), _encode((limits, numbers))


def number_or_text(number: int) -> int | str:
    """Return a number as Lua can hold it exactly, else as text."""
    return number if number < _LUA_EXACT else str(number)


# -- keys ----------------------------------------------------------------------------------------------------------


def undecodable(key: str) -> StateError:
    problem = "a key does not hold a state of its algorithm"
    if key.startswith(RECORDS):
        problem = f"the key {key!r} does not hold a record"
    return StateError(f"Redis: {problem}", [key])


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
