"""Operations on keys whatever their states are: read, delete, list, and probe the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .message import Message, Operation

READ: Final = 6
FORGET: Final = 7
PROBE: Final = 8
_SCAN: Final = 9


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
