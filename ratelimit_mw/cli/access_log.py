"""The values of a line of an access log: its client, its time, its request and its status.

Clients write most of a log, so its text is hostile: memory is bounded, and time grows with the length of a line. A line
that is not understood is invalid, because any guess at its client gives wrong counts.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from ..http.request import only_value, parse_pairs
from ..keys.ip import parse_address
from ..operations.answer import seconds_of
from .output import printable

MAX_LINE: Final = 65_536  # bytes: several times the longest request line and headers that Apache accepts
FORWARDED_FOR: Final = "header:x-forwarded-for"
_MISSING: Final = ("-", '""', "")
_MAX_CLIENT: Final = 255
_END: Final = 253_402_300_800  # the end of the year 9999, in seconds since 1970
_PARTS_FROM: Final = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3))
"""A time of at least the first number is in this part of a second."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_HOST_NAME = re.compile(r"localhost|(?:[\w-]+\.)+[a-z][\w-]*", re.ASCII | re.IGNORECASE)
_REQUEST = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31}) (\S.*) HTTP/\d(?:\.\d)?", re.ASCII)
_APACHE_TIME = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:)(\d\d)(\.\d{1,6})?(?: ([+-]\d{4}))?", re.ASCII)
_SPACE = re.compile(r" (?=[+-]\d\d:?\d\d$)", re.ASCII)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v"}


class InvalidLineError(ValueError):
    """The line is not a request. The message gives the reason."""


class NoRequestError(InvalidLineError):
    """The line is in a known format, but what the client sent is not an HTTP request."""


class HeaderLineError(InvalidLineError):
    """The line describes the lines behind it, or is a message of the server."""


class RequestTarget(NamedTuple):
    """The target of a request. ``path`` is decoded once; ``host`` is "" unless the target contains one."""

    path: str
    query: str = ""
    host: str = ""

    @property
    def fields(self) -> dict[str, Any] | None:
        """The value of each query field, INVALID for different values; None when there are too many fields."""
        fields = parse_pairs(self.query)
        return None if fields is None else {name: only_value(values) for name, values in fields.items()}


class LogEntry(NamedTuple):
    """One request. ``time`` is in seconds since 1970.

    ``client`` is an IP address without its port, a host name, or "unix:", and None where the server logged "-". In some
    formats it may be the list of addresses of X-Forwarded-For. ``features`` are others that the line contains, by name.
    ``format`` is the format of the line.
    """

    client: str | None
    time: float
    method: str
    target: RequestTarget
    status: int
    features: Mapping[str, Any] = {}
    format: str = ""


def decode_line(line: bytes | str) -> str:
    """Return a line as text, without a byte order mark. Bytes that are not UTF-8 become the replacement character."""
    if len(line) > MAX_LINE and len(line.rstrip()) > MAX_LINE:
        raise InvalidLineError(f"longer than {MAX_LINE:,} bytes")
    return line if isinstance(line, str) else line.decode("utf-8", "replace").removeprefix("\ufeff")


def parse_clients(text: str | None) -> str | None:
    """Return the client, or the list of X-Forwarded-For. A proxy adds to its right, so an address must be there."""
    if text is None or "," not in text:
        return parse_client(text)
    parse_client(text.rpartition(",")[2].strip())
    return text


@lru_cache(10_000)
def parse_client(text: str | None) -> str | None:
    """Return an IP address without its port, or a host name; ``InvalidLineError`` for any other text."""
    if text is None or text.startswith("unix:"):
        return text
    if (address := parse_address(text)) is not None:
        return str(address)
    if len(text) > _MAX_CLIENT or not is_host_name(text):
        raise InvalidLineError(f"the client {printable(text, 40)!r} is neither an IP address nor a host name")
    return text.lower()


@lru_cache(10_000)
def is_address(text: str) -> bool:
    """Return whether a text is an IP address, with or without a port."""
    return parse_address(text) is not None


def is_host_name(text: str) -> bool:
    """Return whether a text is the whole name of a host, with its domain."""
    return _HOST_NAME.fullmatch(text) is not None


def parse_request(request: str) -> tuple[str, RequestTarget]:
    """Parse a request line into method and target."""
    match = _REQUEST.fullmatch(request)
    if match is None:
        raise NoRequestError("not an HTTP request")
    return match[1].upper(), parse_target(match[2])


def parse_target(target: str) -> RequestTarget:
    """Parse the target of a request line: a path with its query, or a whole URL as clients send it to a proxy."""
    host = ""
    if not target.startswith("/") and "://" in target:
        try:
            split = urlsplit(target)
            host, target = split.hostname or "", f"{split.path or '/'}?{split.query}"
        except ValueError:
            raise NoRequestError("the URL of the request is invalid") from None
    path, _, query = target.partition("?")
    return RequestTarget(unquote(path) if "%" in path else path, query, host)


def parse_field(field: str | None) -> str | None:
    """Return a field without its escapes, None for one that the server did not have."""
    return None if field is None or field in _MISSING else unescape(field)


def unescape(field: str) -> str:
    r"""Undo ``\xHH``, which Apache and nginx write for bytes, and the backslash of Apache before quotes."""
    if "\\" not in field:
        return field
    return _ESCAPE.sub(_unescape_match, field.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _unescape_match(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _CONTROLS.get(code, code)


@lru_cache(1024)  # many lines have the same second
def parse_time(text: str | float) -> float:
    """Return the seconds since 1970 of a time: as Apache writes it, in ISO 8601, or as a number of any part of seconds.

    A time without a zone is in UTC: Daphne and HAProxy write none. A leap second becomes the second before.
    """
    if isinstance(text, str):
        if match := _APACHE_TIME.fullmatch(text):
            day, month, year, minute, second, fraction, zone = match.groups("")
            number = _MONTHS.index(month) + 1 if month in _MONTHS else 0
            text = f"{year}-{number:02}-{day}T{minute}{second.replace('60', '59')}{fraction}{zone}"
        text = _SPACE.sub("", text)
    for parse in (float, seconds_of):
        with suppress(ValueError, OverflowError, TypeError):
            seconds = parse(text)  # type: ignore[arg-type] # a number is one for the first
            break
    else:
        raise InvalidLineError("the date is invalid")
    if seconds < 0:
        raise InvalidLineError("the date is before 1970")
    if parse is float:
        seconds = round(seconds / next((part for least, part in _PARTS_FROM if least <= seconds < 1e20), 1), 6)
    if not seconds < _END:
        raise InvalidLineError("the date is invalid")
    return seconds


def parse_status(value: Any) -> int:
    """Return a status; ``InvalidLineError`` for any other value."""
    try:
        status = int(value)
    except (TypeError, ValueError, OverflowError):
        status = -1
    if not 0 <= status <= 999:
        raise InvalidLineError("the status is invalid")
    return status
