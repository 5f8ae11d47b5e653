"""The script and the packed argument of a message: the limits and the numbers of its operations."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...algorithms.limit import Limit
from ...decision import SlotCost
from .script import PACKED, LuaAlgorithm, Script, build_script

if TYPE_CHECKING:
    from .message import Operation

_MOST_FORMS: Final = 1_000

Packed = tuple[Script, bytes]


def _pack_slot_cost(cost: SlotCost) -> tuple[int, int]:
    return int(cost), cost.slot


_pack = msgspec.msgpack.Encoder(enc_hook=_pack_slot_cost).encode


class Packing:
    """The limits and numbers of a message, to which its operations add themselves."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._limits: list[Any] = []
        self._algorithms: frozenset[LuaAlgorithm] = frozenset()
        self.known: dict[Limit, int] = {}
        self.numbers: list[Any] = []
        for each in operations:
            self.numbers += (each.kind, each.now, each.ttl_ms, len(each.items))
            each.join(self)

    def number_of(self, limit: Limit) -> int:
        """Return the number of a limit that is new in this message. Numbers start at 1, as in Lua."""
        number = self.known[limit] = self.add(*PACKED[limit])
        return number

    def add(self, packed: Any, lua: LuaAlgorithm) -> int:
        """Return the number of a packed limit that ``lua`` decides."""
        self._limits.append(packed)
        if lua not in self._algorithms:
            self._algorithms = _with(self._algorithms, lua)
        return len(self._limits)

    @property
    def packed(self) -> Packed:
        return build_script(self._algorithms), _pack((self._limits, self.numbers))


@cache
def _with(algorithms: frozenset[LuaAlgorithm], lua: LuaAlgorithm) -> frozenset[LuaAlgorithm]:
    """Return one object for equal sets: its hash, by which the script is found, is computed once."""
    return algorithms | {lua}


def pack_text(data: bytes | None) -> msgspec.Raw | None:
    """Return bytes as a msgpack string, the only kind of bytes that Redis can unpack."""
    return None if data is None else msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)


class Form:
    """A message without its keys: its packed argument, and the bytes before and after the keys."""

    __slots__ = ("head", "packed", "tail")

    def __init__(self, packed: Packed, keys: int) -> None:
        (_, sha), argument = self.packed = packed
        count = b"%d" % keys
        self.head = b"*%d\r\n$7\r\nEVALSHA\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (keys + 4, len(sha), sha, len(count), count)
        self.tail = b"$%d\r\n%b\r\n" % (len(argument), argument)


class Forms(dict[tuple[Any, ...], Form]):
    """A cache."""

    def keep(self, key: tuple[Any, ...], form: Form) -> Form:
        if len(self) >= _MOST_FORMS:
            self.clear()
        return self.setdefault(key, form)


FORMS: Final = Forms()
