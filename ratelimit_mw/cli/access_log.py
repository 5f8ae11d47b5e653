"""Parses lines of the access logs of Apache and nginx, in the common and the combined format.

Clients write most of a log, so its text is hostile. Parsing takes time proportional to the length of the line.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

LONGEST_LINE: Final = 65_536
"""In bytes, several times the longest request line and headers that Apache accepts."""

_MISSING: Final = ("-", '""', "")
_MONTHS: Final = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MAX_FIELDS: Final = 1000

# Possessive quantifiers (++, *+) fail at once on a line that does not match, without backtracking.
_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)"'
# The last field may be truncated: the fields before it are complete.
_LAST_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)'
_LINE = re.compile(
    rf"(\S+) \S+ (.*?) ?\[([^\]\"]{{1,64}})\] {_QUOTED} (\d{{3}}) (?:\d+|-)(?: {_QUOTED} {_LAST_QUOTED})?", re.ASCII
)
_REQUEST = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31}) (\S.*) HTTP/\d(?:\.\d)?", re.ASCII)
_DAY_AND_TIME = re.compile(r"(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v"}


class InvalidLineError(ValueError):
    """The line is not a request. The message gives the reason."""


class Target(NamedTuple):
    """The target of a request. ``path`` is decoded once; ``host`` is "" unless the target contains one."""

    path: str
    query: str = ""
    host: str = ""

    @property
    def fields(self) -> dict[str, str] | None:
        """The last value of each query field, or None when there are too many fields."""
        try:
            return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        except ValueError:
            return None


class LogEntry(NamedTuple):
    """One request. ``time`` is in seconds since 1970. A field that the server logged as "-" is None."""

    client: str | None
    user: str | None
    time: int
    method: str
    target: Target
    status: int
    referer: str | None = None
    user_agent: str | None = None


def parse_line(line: bytes | str) -> LogEntry:
    """Parse one line, with or without its line end. Text after the fields of the combined format is ignored.

    >>> entry = parse_line('192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /a%20b?c=1 HTTP/1.1" 200 12')
    >>> entry.client, entry.method, entry.target.path, entry.status, entry.time
    ('192.0.2.7', 'GET', '/a b', 200, 1431857103)

    Raises:
        InvalidLineError: The line is not a request.
    """
    if len(line) > LONGEST_LINE:
        raise InvalidLineError(f"longer than {LONGEST_LINE:,} bytes")
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    match = _LINE.match(text)
    if match is None:
        raise InvalidLineError("not in the common or combined format")
    client, user, time, request, status, referer, user_agent = match.groups()
    request_line = _REQUEST.fullmatch(_unescape(request))
    if request_line is None:
        raise InvalidLineError("not an HTTP request")
    method, target = request_line.groups()
    return LogEntry(
        _value(client),
        _value(user),
        _seconds(time),
        method.upper(),
        parse_target(target),
        int(status),
        _value(referer),
        _value(user_agent),
    )


def parse_target(target: str) -> Target:
    """Parse the target of a request line: a path with its query, or a whole URL as clients send it to a proxy.

    >>> parse_target("/caf%C3%A9?a=1")
    Target(path='/café', query='a=1', host='')
    >>> parse_target("http://example.com:8080/a").host
    'example.com'
    """
    host = ""
    if not target.startswith("/") and "://" in target:
        try:
            split = urlsplit(target)
            host, target = split.hostname or "", f"{split.path or '/'}?{split.query}"
        except ValueError:
            raise InvalidLineError("the URL of the request is invalid") from None
    path, _, query = target.partition("?")
    return Target(unquote(path) if "%" in path else path, query, host)


def _value(field: str | None) -> str | None:
    return None if field is None or field in _MISSING else _unescape(field)


def _unescape(field: str) -> str:
    r"""Undo ``\xHH``, which both servers write for bytes, and the backslash of Apache before quotes."""
    if "\\" not in field:
        return field
    return _ESCAPE.sub(_unescape_match, field.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _unescape_match(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _CONTROLS.get(code, code)


@lru_cache(1024)  # many lines have the same second
def _seconds(text: str) -> int:
    """Parse "17/May/2015:10:05:03 +0000" into seconds since 1970."""
    match = _DAY_AND_TIME.fullmatch(text)
    if match is None:
        raise InvalidLineError("the date is invalid")
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
    try:
        # datetime has no leap seconds, so a leap second becomes the second before.
        moment = datetime(
            int(year), _MONTHS.index(month), int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC
        )
        offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
        seconds = int((moment - offset if sign == "+" else moment + offset).timestamp())
    except (ValueError, OverflowError):
        seconds = -1
    if seconds < 0 or int(second) > 60:
        raise InvalidLineError("the date does not exist")
    return seconds
