"""Memcached's text protocol: names, expiry, commands to bytes, replies from bytes. Every version knows the commands."""

import re
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ...clock import SECOND, machine
from ...errors import ConfigError
from ..wire import MORE, ReplyError

STORED: Final = b"STORED"
EXPIRED: Final = -1  # An expiry. With ``cas`` it is a delete that fails when another client was faster.

_ERRORS: Final = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_MAX_LINE: Final = 2_048
_VALUE: Final = re.compile(rb"VALUE ([^ ]*) [^ ]* (\d{1,20}) ([^ ]*)", re.DOTALL)
_MAX_NAME: Final = 250
_MAX_HEAD: Final = 27  # b"t", a tier, a block of 16 digits, and the separators
_MAX_RELATIVE: Final = 30 * 86_400  # Memcached reads a larger number of seconds as a date.
_MAX_DATE: Final = 2**31 - 1  # It deletes a value with a later date, after January 2038, at once.
_NEVER: Final = 0
_MAX_PREFIX: Final = 50


class StoredValue(NamedTuple):
    """A value and its ``cas`` number, which changes with every write."""

    value: bytes
    unique: bytes


class KeyNames:
    """Builds names: the prefix, the kind of the value, the token of the key. No two values share a name."""

    def __init__(self, prefix: str) -> None:
        if not _is_printable(prefix) or not 0 < len(prefix) <= _MAX_PREFIX:
            raise ConfigError(f"expected a prefix of 1 to {_MAX_PREFIX} printable ASCII characters; got {prefix!r}")
        self._prefix = prefix.encode()
        self._max_key = _MAX_NAME - _MAX_HEAD - len(prefix)
        self.ping = self._prefix + b"p"

    def token(self, key: str) -> bytes:
        """Return ``:`` and the key, or ``#`` and a hash of 128 bits for a key that Memcached does not accept."""
        if len(key) < self._max_key and _is_printable(key):
            return b":" + key.encode()
        return b"#" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest().encode()

    def state(self, token: bytes) -> bytes:
        return self._prefix + token

    def counter(self, block: tuple[int, int], token: bytes) -> bytes:
        return b"%bt%d.%d%b" % (self._prefix, *block, token)


def expiry(us: int) -> int:
    """Return the expiry of a value that must live for ``us`` microseconds."""
    seconds = -(-us // SECOND) + 2  # more, because the server's clock ticks once a second, and later where it is busy
    if seconds <= _MAX_RELATIVE:
        return seconds
    date = machine.time_ns() // 10**9 + 1 + seconds
    return date if date <= _MAX_DATE else _NEVER


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


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
    """The codec: cuts what is received into replies, which are a line, or all values of a read by their names."""

    def __init__(self) -> None:
        self._data = b""
        self._values: dict[bytes, Any] = {}

    def feed(self, data: bytes) -> None:
        self._data += data

    def gets(self) -> Any:
        """Return the next reply, or ``MORE``. Raise ``ReplyError`` for an error reply, and for other bytes."""
        while (end := self._data.find(b"\r\n")) >= 0:
            line, after = self._data[:end], end + 2
            if line.startswith(_ERRORS):
                raise ReplyError(line[:_MAX_LINE].decode("utf-8", "replace"))
            if line.startswith(b"VALUE "):
                name, size, unique = _parse_value(line)
                if len(self._data) < after + size + 2:
                    return MORE
                self._values[name] = StoredValue(self._data[after : after + size], unique)
                after += size + 2
            elif line.startswith(b"STAT "):
                _, name, *text = line.split(b" ", 2)
                self._values[name] = b"".join(text).decode("utf-8", "replace")
            self._data = self._data[after:]
            if line == b"END":
                values, self._values = self._values, {}
                return values
            if not line.startswith((b"VALUE ", b"STAT ")):
                return line
        if len(self._data) > _MAX_LINE:
            raise unexpected(self._data)
        return MORE


def _parse_value(line: bytes) -> tuple[bytes, int, bytes]:
    match = _VALUE.fullmatch(line)
    if match is None:
        raise unexpected(line)
    name, size, unique = match.groups()
    return name, int(size), unique


def unexpected(data: object) -> ReplyError:
    shown = data[:40] if isinstance(data, bytes) else data
    return ReplyError(f"expected a reply of Memcached, got {shown!r}")
