"""Lines of Apache's and nginx's access logs, common and combined format, into requests. Pure; knows no rules.

A log is hostile text: clients write most of it. Nothing here takes longer than the line is long.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["LONGEST_LINE", "LogEntry", "Target", "UnreadableLineError", "parse_line", "parse_target"]

LONGEST_LINE: Final = 65_536
"""Bytes; Apache's longest request line and headers fit several times."""

_ABSENT: Final = ("-", '""', "")
_MONTHS: Final = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST_FIELDS: Final = 1000

# Possessive (++, *+): a line that does not fit is given up at once, not tried in every other way.
_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)"'
# The last field may be cut off: that a line is damaged at its end takes nothing from who asked for what.
_LAST_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)'
_LINE = re.compile(
    rf"(\S+) \S+ (.*?) ?\[([^\]\"]{{1,64}})\] {_QUOTED} (\d{{3}}) (?:\d+|-)(?: {_QUOTED} {_LAST_QUOTED})?", re.ASCII
)
_REQUEST = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31}) (\S.*) HTTP/\d(?:\.\d)?", re.ASCII)
_DAY_AND_TIME = re.compile(r"(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v"}


class UnreadableLineError(ValueError):
    """A line that is not a request; the message says why."""


class Target(NamedTuple):
    """What a request asks for. ``path`` is decoded once, ``host`` is "" unless the target names one."""

    path: str
    query: str = ""
    host: str = ""

    @property
    def fields(self) -> dict[str, str] | None:
        """The last value of each field of the query; None when there are too many to read."""
        try:
            return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        except ValueError:
            return None


class LogEntry(NamedTuple):
    """One request. ``time`` is in seconds since 1970; what the server logged as "-" is None."""

    client: str | None
    user: str | None
    time: int
    method: str
    target: Target
    status: int
    referer: str | None = None
    user_agent: str | None = None


def parse_line(line: bytes | str) -> LogEntry:
    """One line, with or without its end. What follows the fields of the combined format is left unread.

    >>> entry = parse_line('192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /a%20b?c=1 HTTP/1.1" 200 12')
    >>> entry.client, entry.method, entry.target.path, entry.status, entry.time
    ('192.0.2.7', 'GET', '/a b', 200, 1431857103)

    Raises ``UnreadableLineError``.
    """
    if len(line) > LONGEST_LINE:
        raise UnreadableLineError(f"longer than {LONGEST_LINE} bytes")
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    found = _LINE.match(text)
    if found is None:
        raise UnreadableLineError("not a line of the common or combined format")
    client, user, time, request, status, referer, user_agent = found.groups()
    asked = _REQUEST.fullmatch(_unescaped(request))
    if asked is None:
        raise UnreadableLineError("the request is not HTTP")
    method, target = asked.groups()
    return LogEntry(
        _known(client),
        _known(user),
        _seconds(time),
        method.upper(),
        parse_target(target),
        int(status),
        _known(referer),
        _known(user_agent),
    )


def parse_target(target: str) -> Target:
    """The target of a request line: a path with its query, or a whole address as proxies are asked for.

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
            raise UnreadableLineError("the request's address is not one") from None
    path, _, query = target.partition("?")
    return Target(unquote(path) if "%" in path else path, query, host)


def _known(field: str | None) -> str | None:
    return None if field is None or field in _ABSENT else _unescaped(field)


def _unescaped(field: str) -> str:
    r"""Both servers write what is not printable as ``\xHH``; Apache puts a backslash before quotes, too."""
    if "\\" not in field:
        return field
    return _ESCAPE.sub(_original, field.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _original(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _CONTROLS.get(code, code)


@lru_cache(1024)  # many lines share a second
def _seconds(text: str) -> int:
    """Seconds since 1970 of "17/May/2015:10:05:03 +0000"."""
    found = _DAY_AND_TIME.fullmatch(text)
    if found is None:
        raise UnreadableLineError("the date is not one")
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = found.groups()
    try:
        # A leap second is the one before: datetime has none.
        moment = datetime(
            int(year), _MONTHS.index(month), int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC
        )
        offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
        seconds = int((moment - offset if sign == "+" else moment + offset).timestamp())
    except (ValueError, OverflowError):
        seconds = -1
    if seconds < 0 or int(second) > 60:
        raise UnreadableLineError("the date is impossible")
    return seconds
