"""Memcached's text protocol, in commands that every version knows: commands to bytes, replies from bytes. No socket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from .servers import MemcachedServer

STORED: Final = b"STORED"
EXPIRED: Final = -1  # An expiry. With ``cas`` it is a delete that fails when another client was faster.

_ERRORS: Final = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_MAX_LINE: Final = 2_048
_VALUE: Final = re.compile(rb"VALUE ([^ ]*) [^ ]* (\d{1,20}) ([^ ]*)", re.DOTALL)
_MAX_VALUE: Final = 1 << 20  # Memcached's own limit for an item


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


class ReplyParser:
    """Parses the reply to one payload: ``lines`` lines, then the values of at most ``names`` names.

    Lines and values have a maximum size, so a reply cannot fill the memory.
    """

    def __init__(self, lines: int, names: int) -> None:
        self.lines: list[bytes] = []
        self.values: dict[bytes, StoredValue] = {}
        self.rest = b""
        self._missing_lines = lines
        self._names = names
        self._has_values = names > 0

    def feed(self, data: bytes) -> bool:
        """Parse ``data``. True when the reply is complete; ``rest`` is the data after it.

        Raises:
            ProtocolError: For an error reply and for other bytes than a reply.
        """
        data = self.rest + data
        at = 0
        while self._missing_lines or self._has_values:
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > _MAX_LINE:
                    raise _unexpected(data[at:])
                break
            line = data[at:end]
            if line.startswith(_ERRORS):
                raise ProtocolError(line[:_MAX_LINE].decode("utf-8", "replace"))
            if self._missing_lines:
                self.lines.append(line)
                self._missing_lines -= 1
            elif line == b"END":
                self._has_values = False
            else:
                name, size, unique = self._parse_value(line)
                if len(data) < end + size + 4:
                    break
                self.values[name] = StoredValue(data[end + 2 : end + 2 + size], unique)
                end += 2 + size
            at = end + 2
        self.rest = data[at:]
        return not (self._missing_lines or self._has_values)

    def _parse_value(self, line: bytes) -> tuple[bytes, int, bytes]:
        match = _VALUE.fullmatch(line)
        if match is None or len(self.values) >= self._names:
            raise _unexpected(line)
        name, size, unique = match.groups()
        if int(size) > _MAX_VALUE:
            raise ProtocolError(f"a value of {int(size)} bytes is larger than {_MAX_VALUE}")
        return name, int(size), unique


class LoginParser(ReplyParser):
    """Parses the reply to a login. The error shows no text of the server, which may repeat the password."""

    def __init__(self, server: MemcachedServer) -> None:
        super().__init__(1, 0)
        self._server = server

    def feed(self, data: bytes) -> bool:
        with suppress(ProtocolError):
            is_complete = super().feed(data)
            if self.lines in ([], [STORED]):
                return is_complete
        raise ProtocolError(f"{self._server} rejected the user name or the password")


def _unexpected(data: bytes) -> ProtocolError:
    return ProtocolError(f"expected a reply of Memcached, got {data[:40]!r}")


class RoundTrip:
    """One payload for each server, and the part of the replies that belongs to each key."""

    def __init__(self, requests: Iterable[KeyCommands]) -> None:
        self._parts: list[tuple[MemcachedServer, int, int]] = []
        commands: dict[MemcachedServer, list[bytes]] = {}
        names: dict[MemcachedServer, list[bytes]] = {}
        for server, lines, read in requests:
            start = len(commands.setdefault(server, []))
            commands[server] += lines
            names.setdefault(server, []).extend(read)
            self._parts.append((server, start, start + len(lines)))
        self.parsers = {server: ReplyParser(len(commands[server]), len(names[server])) for server in commands}
        for server, read in names.items():
            if read:
                commands[server].append(b"gets %b\r\n" % b" ".join(read))
        self.payloads = {server: b"".join(commands[server]) for server in commands}

    def replies(self) -> list[KeyReply]:
        """Return the reply to each ``KeyCommands``, in their order."""
        parsers = self.parsers
        return [
            KeyReply(parsers[server].lines[start:end], parsers[server].values) for server, start, end in self._parts
        ]
