"""Calls as data: a command or a script with its keys, and the result that is read from the reply.

Several ``Operation`` objects can share a call of ``shell.lua``. This file opens no connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

import msgspec
from hiredis import pack_command
from redis import ResponseError

from ...clock import wall_us
from ...decision import Decision, Hit, SlotCost
from ...errors import StateError
from ..base import RECORD_PREFIX
from .errors import Command, as_store_error, error_code
from .script import PACKED, LuaAlgorithm, Script, build_script, read_script


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
_MAX_PACKED: Final = 1_000
_limit_of: Final = itemgetter(0)
_limit_and_cost: Final = itemgetter(0, 2)


class RedisCall:
    """A command or a script, ``verb``, to the server of a slot, 0 without a cluster. ``names`` are those in Redis."""

    __slots__ = ("arguments", "has_text", "is_alone", "items", "names", "result", "slot", "verb")
    result: Any
    """The reply, or what is read from it, or an error: in the end a ``StoreError``."""
    is_alone: bool
    """Whether it shares its command with no other. Only a part of its slot may be at the server."""
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
        self.has_text, self.is_alone = False, True

    def take(self, reply: Any, position: int) -> int:
        """Set the result from a place of the reply on, or an error reply. Return the place after it."""
        self.result = reply
        return position

    def fail(self, error: Exception) -> None:
        """Set an error as the result. STATE has the number of a key that holds something else."""
        if isinstance(error, ResponseError) and error_code(error) == "STATE":
            error = undecodable(self.key(int(str(error)[6:])))
        self.result = as_store_error(error)

    def take_error(self) -> Exception:
        """Return the result, to be raised, and drop it: its traceback has this call, so they would be a cycle."""
        error, self.result = self.result, None
        return cast("Exception", error)

    def key(self, number: int) -> str:
        """Return a key. They are numbered from 1, as in Lua."""
        return str(self.items[number - 1])


class Operation(RedisCall):
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
        self.has_text = self.is_alone = False
        self.now = now

    def split(self) -> list[Operation]:
        """Return an operation for each key."""
        parts = zip(self.items, self.names, strict=True)
        return [Operation(self.kind, [item], [name], self.slot, self.now) for item, name in parts]

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self.stops = True

    def key(self, number: int) -> str:
        return str(self.items[number - 1][1])

    def take(self, reply: Any, position: int) -> int:
        if isinstance(reply, ResponseError):
            return super().take(reply, position)
        head, start = reply[position], position + 1
        if isinstance(head, bytes):
            self.fail(ResponseError(head.decode("utf-8", "replace")))
            return start
        if self.kind == CORRECT:
            self.result, self.stops = [head] * len(self.items), False
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


# -- commands ------------------------------------------------------------------------------------------------------


def commands_of(calls: Sequence[RedisCall]) -> Sequence[Sequence[RedisCall]]:
    """Return the calls of each command to send: the operations of a slot share one."""
    commands: dict[RedisCall | int, list[RedisCall]] = {}
    for each in calls:
        key = each if each.is_alone else each.slot
        if key in commands:
            commands[key].append(each)
        else:
            commands[key] = [each]
    return list(commands.values())


def frame_of(calls: Sequence[RedisCall]) -> bytes:
    """Return the bytes of a command."""
    first = calls[0]
    if not isinstance(first, Operation):
        verb, arguments = first.verb, first.arguments
    elif len(calls) == 1 and not first.has_text and (ends := _ends_of(first)) is not None:
        return b"".join((ends[0], *[b"$%d\r\n%b\r\n" % (len(name), name) for name in first.names], ends[1]))
    else:
        verb, arguments = pack_operations(calls)
    names = [name for each in calls for name in each.names]
    command: Command = (verb, *names, *arguments)
    if isinstance(verb, Script):
        has_text = True in [each.has_text for each in calls]
        script = (b"EVAL", verb.text) if has_text else (b"EVALSHA", verb.sha)
        command = (*script, len(names), *names, *arguments)
    return cast("bytes", pack_command(command))


def receive(calls: Sequence[RedisCall], reply: Any) -> None:
    """Give the calls of a command their results."""
    position = 0
    try:
        for each in calls:
            position = each.take(reply, position)
    except Exception as error:  # no reply of this command
        for each in calls:
            each.fail(error)


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
        if len(_ends) >= _MAX_PACKED:
            _ends.clear()
        script, (argument,) = pack_operations((operation,))
        count = len(operation.names)
        tail = b"$%d\r\n%b\r\n" % (len(argument), argument)
        head: Command = (b"EVALSHA", script.sha, count)
        ends = _ends[key] = b"*%d\r\n" % (count + 4) + pack_command(head)[4:], tail
    return ends


def pack_operations(operations: Sequence[Any]) -> tuple[Script, tuple[bytes]]:
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
    return build_script(frozenset(algorithms)), (_encode((limits, numbers)),)


def number_or_text(number: int) -> int | str:
    """Return a number as Lua can hold it exactly, else as text."""
    return number if number < _LUA_EXACT else str(number)


def undecodable(key: str) -> StateError:
    problem = "a key does not hold a state of its algorithm"
    if key.startswith(RECORD_PREFIX):
        problem = f"the key {key!r} does not hold a record"
    return StateError(f"Redis: {problem}", [key])


def have_lua(hits: Iterable[Hit]) -> bool:
    """Return whether Lua decides all hits."""
    return None not in map(PACKED.__getitem__, map(_limit_of, hits))


def key_name(prefix: str, key: str) -> bytes:
    """Return the name of a key in Redis: the prefix and the key."""
    return (prefix + key).encode("utf-8", "surrogatepass")


def key_of_name(prefix: str, name: bytes) -> str:
    """Return the key of a name in Redis. Bytes that are no text are replaced: no key of this package has them."""
    try:
        text = name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = name.decode("utf-8", "replace")
    return text.removeprefix(prefix)
