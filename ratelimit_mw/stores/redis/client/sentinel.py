"""Which server is the primary now, as the sentinels say; asked whenever a new connection is made."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

from ....errors import StoreError
from ..address import Address
from .aconnection import aconnected
from .connect import left
from .connection import connected
from .errors import problem

__all__ = ["aprimary", "primary"]

Place = tuple[str, int]

_DOWN: Final = {"s_down", "o_down", "disconnected"}
_turns: Final = itertools.count()


def primary(address: Address, deadline: float) -> Place:
    """Host and port of the primary. A sentinel that is silent leaves time for the others, and for the primary."""
    failed: Exception | None = None
    for place, share in _in_turn(address):
        try:
            return _told(_asked(address, place, time.monotonic() + left(deadline) * share))
        except Exception as error:
            failed = error
    raise _unknown(address, failed)


async def aprimary(address: Address, patience: float) -> Place:
    """The same on an event loop, which bounds it: ``patience`` is what it is given."""
    ends, failed = time.monotonic() + patience, None
    for place, share in _in_turn(address):
        try:
            async with asyncio.timeout(left(ends) * share):
                return _told(await _aasked(address, place, patience))
        except Exception as error:
            failed = error
    raise _unknown(address, failed)


def _in_turn(address: Address) -> Iterator[tuple[Place, float]]:
    """The sentinels, each with its share of the time left. Another one begins each time: the last may have erred."""
    count, first = len(address.hosts), next(_turns)
    for i in range(count):
        yield address.hosts[(first + i) % count], 1 / (count - i + 1)


def _asked(address: Address, place: Place, deadline: float) -> Any:
    line = connected(address.sentinels, *place, deadline)
    try:
        return line.call((b"SENTINEL", b"MASTER", address.service), deadline)
    finally:
        line.close()


async def _aasked(address: Address, place: Place, patience: float) -> Any:
    line = await aconnected(address.sentinels, *place, patience)
    try:
        return await line.call((b"SENTINEL", b"MASTER", address.service))
    finally:
        line.close()


def _told(reply: Any) -> Place:
    """What SENTINEL MASTER says: names and values in turn."""
    known = dict(zip(reply[::2], reply[1::2], strict=True))
    flags = known[b"flags"].decode()
    if _DOWN & set(flags.split(",")):
        raise StoreError(f"the primary is {flags}")
    return known[b"ip"].decode(), int(known[b"port"])


def _unknown(address: Address, error: Exception | None) -> StoreError:
    return StoreError(f"no sentinel names the primary of {address.service!r}: {problem(error or LookupError())}")
