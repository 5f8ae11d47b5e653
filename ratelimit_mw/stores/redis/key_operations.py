"""Operations on keys whatever their states are: read, delete, list, write a record, and probe the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .message import Operation
from .packing import Packing, pack_text

READ: Final = 6
FORGET: Final = 7
PROBE: Final = 8
_SCAN: Final = 9
_WRITE: Final = 10
_LONGEST_MS: Final = 10**14


class KeyOperation(Operation):
    """Read the texts of keys and the time, delete keys, or probe whether the server takes a write now."""

    def join(self, packing: Packing) -> None:
        """Add no numbers: the keys are all."""

    def read(self, reply: Sequence[Any], start: int) -> int:
        end = start + len(self.items) * (self.kind == READ)
        self.result = (reply[start - 1], list(reply[start:end]))
        return end


class ScanOperation(Operation):
    """Look at some keys of the server that has ``key``. The result is where to continue, and the names that match."""

    def __init__(self, key: str, name: bytes, slot: int, place: int, pattern: str, count: int) -> None:
        super().__init__(_SCAN, [key], [name], slot)
        self._arguments = (str(place), pattern, count)

    def join(self, packing: Packing) -> None:
        packing.numbers += self._arguments

    def read(self, reply: Sequence[Any], start: int) -> int:
        place, names = reply[start]
        self.result = (int(place), names)
        return start + 1


class RecordOperation(Operation):
    """Write or delete a record that still is ``before``. The result is whether it was written."""

    def __init__(
        self, key: str, name: bytes, slot: int, data: bytes | None, before: bytes | None, lifetime: int | None
    ) -> None:
        super().__init__(_WRITE, [key], [name], slot)
        milliseconds = 0 if lifetime is None else min(max(1, -(-lifetime // 1_000)), _LONGEST_MS)
        self._arguments = (pack_text(before) or False, pack_text(data) or False, milliseconds)

    def join(self, packing: Packing) -> None:
        packing.numbers += self._arguments

    def read(self, reply: Sequence[Any], start: int) -> int:
        self.result = reply[start] == 1
        return start + 1
