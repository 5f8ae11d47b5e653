"""Memcached's text protocol, in commands that every version knows: commands to bytes, replies from bytes. No socket."""

import re
from collections.abc import Mapping, Sequence
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
    """Parses a reply of bounded size: ``lines`` lines, then the values of at most ``names`` names."""

    def __init__(self, lines: int, names: int) -> None:
        self.lines: list[bytes] = []
        self.values: dict[bytes, StoredValue] = {}
        self.rest = b""
        self._missing_lines = lines
        self._names = names
        self._has_values = names > 0

    def feed(self, data: bytes) -> bool:
        """Parse ``data``. True when the reply is complete; ``rest`` is the data after it."""
        data = self.rest + data
        at = 0
        while self._missing_lines or self._has_values:
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > _MAX_LINE:
                    raise ProtocolError(f"expected a reply of Memcached, got {data[at : at + 40]!r}")
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
            raise ProtocolError(f"expected a reply of Memcached, got {line[:40]!r}")
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


class RoundTrip:
    """One payload for each server, and the part of the replies that belongs to each key."""

    def __init__(self, requests: Sequence[KeyCommands]) -> None:
        self._requests = requests
        self.payloads: dict[MemcachedServer, bytes] = {}
        self.parsers: dict[MemcachedServer, ReplyParser] = {}
        groups: dict[MemcachedServer, list[KeyCommands]] = {}
        for request in requests:
            groups.setdefault(request.server, []).append(request)
        for server, group in groups.items():
            commands = [line for each in group for line in each.commands]
            names = [name for each in group for name in each.names]
            self.parsers[server] = ReplyParser(len(commands), len(names))
            self.payloads[server] = b"".join(commands) + (b"gets %b\r\n" % b" ".join(names) if names else b"")

    def replies(self) -> list[KeyReply]:
        lines = {server: iter(parser.lines) for server, parser in self.parsers.items()}
        values = {server: parser.values for server, parser in self.parsers.items()}
        return [KeyReply([next(lines[at]) for _ in commands], values[at]) for at, commands, _ in self._requests]
