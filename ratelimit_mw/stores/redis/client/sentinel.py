"""Ask the sentinels which server is the primary now. Each new connection asks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from ....errors import StoreError
from ..address import Address
from .errors import as_store_error

if TYPE_CHECKING:
    from .server import Transport

_DOWN: Final = {"s_down", "o_down", "disconnected"}
_turns: Final = itertools.count()


async def find_primary(address: Address, transport: Transport, deadline: float) -> tuple[str, int]:
    """Host and port of the primary. A silent sentinel leaves time for the others and for the primary."""
    count, first = len(address.hosts), next(_turns)  # each search starts with another sentinel
    failure: Exception = LookupError()
    for i in range(count):
        now = transport.time()
        until = now + (deadline - now) / (count - i + 1)
        sentinel = transport.open(address.sentinels, *address.hosts[(first + i) % count])
        try:
            async with transport.timeout_at(until):
                return _parse_primary(await sentinel.call((b"SENTINEL", b"MASTER", address.service), deadline=until))
        except Exception as error:
            failure = error
        finally:
            sentinel.close()
    raise StoreError(f"no sentinel knows the primary of {address.service!r}: {as_store_error(failure)}")


def _parse_primary(reply: Any) -> tuple[str, int]:
    """The location in a reply to SENTINEL MASTER: a map, or names and values in turn."""
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    flags = fields[b"flags"].decode()
    if _DOWN & set(flags.split(",")):
        raise StoreError(f"the primary is {flags}")
    return fields[b"ip"].decode(), int(fields[b"port"])
