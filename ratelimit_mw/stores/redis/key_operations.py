"""Operations on keys whatever their states are: read, delete, list, write a record, and probe the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .message import Operation
from .packing import Packing, pack_text

READ: Final = 6
FORGET: Final = 7
PROBE: Final = 8
SCAN: Final = 9
WRITE: Final = 10


class KeyOperation(Operation):
    """Read the texts of keys and the time, delete keys, or probe whether the server takes a write now."""

    def join(self, packing: Packing) -> None:
        """Add no numbers: the keys are all."""

    def read(self, reply: Sequence[Any], start: int) -> int:
        end = start + len(self.items) * (self.kind == READ)
        self.result = (reply[start - 1], list(reply[start:end]))
        return end


class KeyCommand(Operation):
    """Call one command on the server that has a key. The result is the reply.

    Args:
        kind: The number of the command in the script.
        key: The key.
        name: Its name in Redis.
        slot: Its slot: 0 without a cluster.
        arguments: The arguments of the command after the key.
    """

    def __init__(self, kind: int, key: str, name: bytes, slot: int, *arguments: Any) -> None:
        super().__init__(kind, [key], [name], slot)
        self._arguments = arguments

    def join(self, packing: Packing) -> None:
        packing.numbers += self._arguments

    def read(self, reply: Sequence[Any], start: int) -> int:
        self.result = reply[start]
        return start + 1


def write_arguments(data: bytes | None, before: bytes | None) -> tuple[Any, ...]:
    """Return the arguments that write or delete a record which still is ``before``. The reply is 1 if it was."""
    return pack_text(before) or False, pack_text(data) or False
