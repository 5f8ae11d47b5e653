"""Memcached's text protocol, in commands that every version knows: commands to bytes, replies from bytes. No socket."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...wire import MORE
from .servers import MemcachedServer

STORED: Final = b"STORED"
EXPIRED: Final = -1  # An expiry. With ``cas`` it is a delete that fails when another client was faster.

_ERRORS: Final = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_MAX_LINE: Final = 2_048
_VALUE: Final = re.compile(rb"VALUE ([^ ]*) [^ ]* (\d{1,20}) ([^ ]*)", re.DOTALL)
_MAX_VALUE: Final = 1 << 20  # Memcached's own limit for an item
_MAX_REPLY: Final = 1 << 26


class ProtocolError(Exception):
    """An error reply, or bytes that are not a reply of Memcached."""


class StoredValue(NamedTuple):
    """A value and its ``cas`` number, which changes with every write."""

    value: bytes
    unique: bytes


class KeyCommands(NamedTuple):
    """``commands`` for one key, with a line of reply each. The reads of ``names`` after them see their writes."""

    server: MemcachedServer
    commands: Sequence[bytes] = ()
    names: Sequence[bytes] = ()


class KeyReply(NamedTuple):
    """The reply to one ``KeyCommands``. ``values`` may also hold the values of other keys."""

    lines: Sequence[bytes]
    values: Mapping[bytes, StoredValue]


def command(verb: bytes, name: bytes, amount: int | None = None) -> bytes:
    return b"%b %b\r\n" % (verb, name) if amount is None else b"%b %b %d\r\n" % (verb, name, amount)


def write(verb: bytes, name: bytes, value: bytes, expiry: int) -> bytes:
    return b"%b %b 0 %d %d\r\n%b\r\n" % (verb, name, expiry, len(value), value)


def swap(name: bytes, value: bytes, expiry: int, known: StoredValue | None) -> bytes:
    """Return the command that writes a value unless another client has changed it."""
    if known is None:
        return write(b"add", name, value, expiry)
    return b"cas %b 0 %d %d %b\r\n%b\r\n" % (name, expiry, len(value), known.unique, value)


class ReplyReader:
    """The codec: cuts what is received into replies, which are a line, or all values of a read by their names.

    No reply can fill the memory.
    """

    def __init__(self) -> None:
        self._data = b""
        self._values: dict[bytes, Any] = {}
        self._size = 0  # of the values

    def feed(self, data: bytes) -> None:
        self._data += data

    def gets(self) -> Any:
        """Return the next reply, or ``MORE``. Raise ``ProtocolError`` for an error reply, and for other bytes."""
        while (end := self._data.find(b"\r\n")) >= 0:
            line, after = self._data[:end], end + 2
            if line.startswith(_ERRORS):
                raise ProtocolError(line[:_MAX_LINE].decode("utf-8", "replace"))
            if line.startswith(b"VALUE "):
                name, size, unique = _parse_value(line)
                if len(self._data) < after + size + 2:
                    return MORE
                self._add(name, StoredValue(self._data[after : after + size], unique), size)
                after += size + 2
            elif line.startswith(b"STAT "):
                _, name, *text = line.split(b" ", 2)
                self._add(name, b"".join(text).decode("utf-8", "replace"), len(line))
            self._data = self._data[after:]
            if line == b"END":
                values, self._values, self._size = self._values, {}, 0
                return values
            if not line.startswith((b"VALUE ", b"STAT ")):
                return line
        if len(self._data) > _MAX_LINE:
            raise _unexpected(self._data)
        return MORE

    def _add(self, name: bytes, value: Any, size: int) -> None:
        self._values[name] = value
        self._size += size
        if self._size > _MAX_REPLY:
            raise ProtocolError(f"a reply is larger than {_MAX_REPLY} bytes")


def _parse_value(line: bytes) -> tuple[bytes, int, bytes]:
    match = _VALUE.fullmatch(line)
    if match is None:
        raise _unexpected(line)
    name, size, unique = match.groups()
    if int(size) > _MAX_VALUE:
        raise ProtocolError(f"a value of {int(size)} bytes is larger than {_MAX_VALUE}")
    return name, int(size), unique


def _unexpected(data: object) -> ProtocolError:
    shown = data[:40] if isinstance(data, bytes) else data
    return ProtocolError(f"expected a reply of Memcached, got {shown!r}")


class RoundTrip:
    """One payload for each server, and the part of the replies that belongs to each key."""

    def __init__(self, requests: Sequence[KeyCommands]) -> None:
        self.groups: dict[MemcachedServer, list[KeyCommands]] = {}
        self._requests = requests
        for request in requests:
            self.groups.setdefault(request.server, []).append(request)

    def payload(self, server: MemcachedServer) -> tuple[bytes, int]:
        """Return what to send to a server, and the number of its replies: a line for each command, and the values."""
        commands = [line for each in self.groups[server] for line in each.commands]
        names = [name for each in self.groups[server] for name in each.names]
        reads = [b"gets %b\r\n" % b" ".join(names)] if names else []
        return b"".join(commands + reads), len(commands) + len(reads)

    def replies(self, received: Mapping[MemcachedServer, Sequence[Any]]) -> list[KeyReply]:
        """Return the reply to each request."""
        values: dict[MemcachedServer, Any] = {}
        for server, group in self.groups.items():
            *lines, last = received[server]
            values[server] = last if any(each.names for each in group) else {}
            lines = lines if values[server] is last else [*lines, last]
            if not all(isinstance(line, bytes) for line in lines) or not isinstance(values[server], dict):
                raise _unexpected(received[server][0])
        left = {server: iter(replies) for server, replies in received.items()}
        return [KeyReply([next(left[at]) for _ in commands], values[at]) for at, commands, _ in self._requests]
