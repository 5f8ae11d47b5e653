"""Memcached's text protocol, as bytes out and bytes in: no socket, no clock. Commands that every version knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from .servers import Server

__all__ = [
    "GONE",
    "STORED",
    "Ask",
    "Found",
    "Replies",
    "Told",
    "Trip",
    "WireError",
    "counted",
    "delete",
    "increment",
    "decrement",
    "put",
    "store",
]

STORED: Final = b"STORED"
GONE: Final = -1
"""The expiry of a value that nobody is to see: with ``cas``, a delete that fails when another was faster."""

_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")


class WireError(Exception):
    """What came back is an error of the server's, or nothing that the protocol knows."""


class Found(NamedTuple):
    """A value, and the number by which ``cas`` knows that nobody has changed it since."""

    value: bytes
    unique: bytes


class Ask(NamedTuple):
    """What one key wants of its server: ``lines``, answered by a line each, and then ``names`` to be read.

    A server carries the commands of one connection out in their order, so what is read comes after the lines.
    """

    token: bytes
    lines: Sequence[bytes] = ()
    names: Sequence[bytes] = ()


class Told(NamedTuple):
    """The answer to an ``Ask``. ``values`` may hold what others asked for."""

    lines: Sequence[bytes]
    values: Mapping[bytes, Found]


def store(name: bytes, value: bytes, expiry: int, known: Found | None) -> bytes:
    """Write a value unless somebody else was faster: ``add`` where none was found, else ``cas``."""
    if known is None:
        return b"add %b 0 %d %d\r\n%b\r\n" % (name, expiry, len(value), value)
    return b"cas %b 0 %d %d %b\r\n%b\r\n" % (name, expiry, len(value), known.unique, value)


def put(name: bytes, value: bytes, expiry: int) -> bytes:
    """Write a value, whoever else does."""
    return b"set %b 0 %d %d\r\n%b\r\n" % (name, expiry, len(value), value)


def counted(name: bytes, expiry: int) -> bytes:
    """A counter that stands at nothing, unless it is there."""
    return store(name, b"0", expiry, None)


def increment(name: bytes, by: int) -> bytes:
    return b"incr %b %d\r\n" % (name, by)


def decrement(name: bytes, by: int) -> bytes:
    """Never below nothing."""
    return b"decr %b %d\r\n" % (name, by)


def delete(name: bytes) -> bytes:
    return b"delete %b\r\n" % name


class Replies:
    """Reads what a server answers to one payload: a number of lines, then the values of one ``gets``."""

    def __init__(self, lines: int, reads: bool) -> None:
        self.lines: list[bytes] = []
        self.values: dict[bytes, Found] = {}
        self.rest = b""
        self._lines_due = lines
        self._reads = reads

    def feed(self, data: bytes) -> bool:
        """Take in what arrived; True when all is there, and ``rest`` is what follows. ``WireError`` for nonsense."""
        data = self.rest + data
        at = 0
        while self._lines_due or self._reads:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line = data[at:end]
            if line.startswith(_ERRORS):
                raise WireError(line.decode("utf-8", "replace"))
            if self._lines_due:
                self.lines.append(line)
                self._lines_due -= 1
            elif line == b"END":
                self._reads = False
            else:
                name, size, unique = _value(line)
                if len(data) < end + size + 4:
                    break
                self.values[name] = Found(data[end + 2 : end + 2 + size], unique)
                end += 2 + size
            at = end + 2
        self.rest = data[at:]
        return not (self._lines_due or self._reads)


def _value(line: bytes) -> tuple[bytes, int, bytes]:
    parts = line.split(b" ")
    if len(parts) != 5 or parts[0] != b"VALUE" or not parts[3].isdigit():
        raise WireError(f"an answer that the protocol does not know: {line[:40]!r}")
    return parts[1], int(parts[3]), parts[4]


class Trip:
    """One round trip: what goes to which server, and who gets which part of what comes back."""

    def __init__(self, asks: Iterable[Ask], place: Callable[[bytes], Server]) -> None:
        self._shares: list[tuple[Server, int, int]] = []
        lines: dict[Server, list[bytes]] = {}
        names: dict[Server, list[bytes]] = {}
        for ask in asks:
            server = place(ask.token)
            mine = lines.setdefault(server, [])
            names.setdefault(server, []).extend(ask.names)
            self._shares.append((server, len(mine), len(mine) + len(ask.lines)))
            mine.extend(ask.lines)
        self.payloads = {server: b"".join(lines[server]) + _reading(names[server]) for server in lines}
        self.replies = {server: Replies(len(lines[server]), bool(names[server])) for server in lines}

    def told(self) -> list[Told]:
        """What each ask is told, in their order, once all replies are there."""
        return [
            Told(self.replies[server].lines[start:end], self.replies[server].values)
            for server, start, end in self._shares
        ]


def _reading(names: Sequence[bytes]) -> bytes:
    return b"gets %b\r\n" % b" ".join(names) if names else b""
