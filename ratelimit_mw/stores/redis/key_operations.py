"""Operations on keys whatever their states are: read, delete, list, and probe the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .message import Operation
from .packing import Packing

READ: Final = 6
FORGET: Final = 7
PROBE: Final = 8
_SCAN: Final = 9


class KeyOperation(Operation):
    """Read the texts of keys and the time, delete keys, or probe whether the server takes a write now."""

    def join(self, packing: Packing) -> None:
        """Add no numbers: the keys are all."""

    def read(self, reply: Sequence[Any], start: int) -> int:
        end = start + len(self.items) * (self.kind == READ)
        self.result = (reply[start - 1], list(reply[start:end]))
        return end


class ScanOperation(Operation):
    """Look at some keys of the server that has ``key``. The result is the place to go on, and the names that match."""

    def __init__(self, key: str, name: bytes, place: int, pattern: str, count: int) -> None:
        super().__init__(_SCAN, [key], [name])
        self._arguments = (str(place), pattern, count)

    def join(self, packing: Packing) -> None:
        packing.numbers += self._arguments

    def read(self, reply: Sequence[Any], start: int) -> int:
        place, names = reply[start]
        self.result = (int(place), names)
        return start + 1
