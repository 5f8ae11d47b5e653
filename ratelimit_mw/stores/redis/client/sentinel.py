"""Ask the sentinels which server is the primary now. Each new connection asks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

from ....errors import StoreError
from ..address import Address
from .aconnection import aconnect
from .connect import left
from .connection import connect
from .errors import as_store_error

Location = tuple[str, int]

_DOWN: Final = {"s_down", "o_down", "disconnected"}
_turns: Final = itertools.count()


def find_primary(address: Address, deadline: float) -> Location:
    """Host and port of the primary. A silent sentinel leaves time for the others and for the primary."""
    failure: Exception = LookupError()
    for location, share in _in_turn(address):
        until = time.monotonic() + left(deadline) * share
        try:
            sentinel = connect(address.sentinels, *location, until)
            try:
                return _primary_in(sentinel.call((b"SENTINEL", b"MASTER", address.service), until))
            finally:
                sentinel.disconnect()
        except Exception as error:
            failure = error
    raise _not_found(address, failure)


async def afind_primary(address: Address, timeout: float) -> Location:
    """Async form of `find_primary`, which the caller bounds by `timeout` seconds."""
    failure: Exception = LookupError()
    deadline = time.monotonic() + timeout
    for location, share in _in_turn(address):
        try:
            async with asyncio.timeout(left(deadline) * share):
                sentinel = await aconnect(address.sentinels, *location, timeout)
                try:
                    return _primary_in(await sentinel.call((b"SENTINEL", b"MASTER", address.service)))
                finally:
                    sentinel.close()
        except Exception as error:
            failure = error
    raise _not_found(address, failure)


def _in_turn(address: Address) -> Iterator[tuple[Location, float]]:
    """The sentinels, each with its share of the time left. Each search starts with another sentinel."""
    count, first = len(address.hosts), next(_turns)
    for i in range(count):
        yield address.hosts[(first + i) % count], 1 / (count - i + 1)


def _primary_in(reply: Any) -> Location:
    """The location in a reply to SENTINEL MASTER: a map, or names and values in turn."""
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    flags = fields[b"flags"].decode()
    if _DOWN & set(flags.split(",")):
        raise StoreError(f"the primary is {flags}")
    return fields[b"ip"].decode(), int(fields[b"port"])


def _not_found(address: Address, failure: Exception) -> StoreError:
    return StoreError(f"no sentinel knows the primary of {address.service!r}: {as_store_error(failure)}")
