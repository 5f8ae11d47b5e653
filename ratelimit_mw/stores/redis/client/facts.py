"""Facts about one server of Redis: its reply to a command, over a connection of its own, within 1.5 s."""

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from redis import ResponseError

from ...base import Facts
from ...blocking import run_blocking
from ..address import Address
from .errors import as_store_error
from .slot_map import Location, location_text
from .transport import Transport, call

SECONDS: Final = 1.5
_FIELD: Final = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)


def facts_of_server(kind: str, address: Address, transport: Transport, location: Location, *command: bytes) -> Facts:
    """Return the reply of one server to a command, by default INFO."""
    with closing(transport.open(address, *location)) as pool:
        info = call(pool, command or (b"INFO",), transport.clock.now + SECONDS)
        return facts_of(kind, address.path or location_text(location), lambda: run_blocking(info))


def facts_of(kind: str, name: str, read: Callable[[], Any]) -> Facts:
    """Return the values in the reply that ``read`` returns, or the problem that it raises."""
    try:
        return Facts(kind, name, values_of(read()))
    except Exception as error:
        return Facts(kind, name, {}, str(as_store_error(error)), isinstance(error, ResponseError))


def values_of(reply: Any) -> dict[str, str]:
    """Return the values in a reply: lines of text, a map, or names and values in turn."""
    if isinstance(reply, bytes):
        return dict(_FIELD.findall(reply.decode("utf-8", "replace")))
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
