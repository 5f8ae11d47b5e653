"""Parses a line of an access log in the common or the combined format of Apache and nginx.

Clients write most of a log, so its text is hostile: memory is bounded, and time grows with the length of a line. A line
that is not understood is invalid, because any guess at its client gives wrong counts.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..http.request import group_values, only_value
from ..keys.ip import parse_address
from ..operations.times import seconds_of
from .output import printable

LONGEST_LINE: Final = 65_536  # bytes: several times the longest request line and headers that Apache accepts
_MISSING: Final = ("-", '""', "")
_MAX_FIELDS: Final = 1000
_MAX_CACHED_TEXT: Final = 256
_END: Final = 253_402_300_800  # the end of the year 9999, in seconds since 1970

# Possessive quantifiers (++, *+) fail at once on a line that does not match, without backtracking.
QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)"'
# The last field may be truncated: the fields before it are complete.
_LAST_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)'
_LINE = re.compile(
    rf"(\S+) (\S+) (\S*) ?\[([^][\"]{{1,64}})\] {QUOTED} (\d{{3}}) (?:\d+|-)(?!\S)"
    rf'(?: {QUOTED} {_LAST_QUOTED}(?:" {QUOTED}(?!\S))?)?',
    re.ASCII,
)
# Prefixes of a line, by other programs and by vhost_combined of Apache.
_ISO: Final = r"\d{4}-\d\d-\d\dT[\d:.+Z-]{8,32}"
_SYSLOG: Final = rf"(?:<\d{{1,3}}>)?(?:[A-Z][a-z]{{2}} [ \d]\d [\d:]{{8}}|{_ISO}) [\w.:-]+ [\w./-]+(?:\[\d+\])?: "
_TIMESTAMP: Final = rf"{_ISO} (?=\{{|\S+ \S+ \S+ \[)"
"""The time that ``docker logs -t`` and ``kubectl logs --timestamps`` write in front of a whole line."""
_HOST: Final = r"(?P<host>[\w-]+(?:\.[\w-]+)*)(?P<port>:\d{1,5})? (?=[][\da-fA-F]*[.:]\S* )"
_PREFIX = re.compile(
    rf"(?P<syslog>{_SYSLOG})?(?P<Kubernetes>{_ISO} (?:stdout|stderr) F )?(?P<time>{_TIMESTAMP})?(?:{_HOST})?",
    re.ASCII,
)
_HOST_NAME = re.compile(r"localhost|(?:[\w-]+\.)+[a-z][\w-]*", re.ASCII | re.IGNORECASE)
_MAX_CLIENT: Final = 255
FORWARDED_FOR: Final = "header:x-forwarded-for"
_REQUEST = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31}) (\S.*) HTTP/\d(?:\.\d)?", re.ASCII)
_TIME = re.compile(r"(\d\d/[A-Za-z]{3}/\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_WITHOUT_ZONE = re.compile(r"(\d\d/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d)(\.\d{1,6})?", re.ASCII)
_SPACE = re.compile(r" (?=[+-]\d\d:?\d\d$)", re.ASCII)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CONTROLS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v"}


class InvalidLineError(ValueError):
    """The line is not a request. The message gives the reason."""


class NotCommonError(InvalidLineError):
    """The line has no fields of the common format."""


class NoRequestError(InvalidLineError):
    """The line is in a known format, but what the client sent is not an HTTP request."""


class RequestTarget(NamedTuple):
    """The target of a request. ``path`` is decoded once; ``host`` is "" unless the target contains one."""

    path: str
    query: str = ""
    host: str = ""

    @property
    def fields(self) -> dict[str, Any] | None:
        """The value of each query field, INVALID for different values; None when there are too many fields."""
        try:
            pairs = parse_qsl(self.query, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            return None
        return {name: only_value(values) for name, values in group_values(pairs).items()}


class LogEntry(NamedTuple):
    """One request. ``time`` is in seconds since 1970. A field that the server logged as "-" is None.

    ``client`` is an IP address without its port, a host name, or "unix:". In JSON lines it may be the list of addresses
    of X-Forwarded-For. ``features`` are others that the line contains, by name. ``format`` is the format of the line.
    """

    client: str | None
    user: str | None
    time: float
    method: str
    target: RequestTarget
    status: int
    referer: str | None = None
    user_agent: str | None = None
    features: Mapping[str, Any] = {}
    format: str = ""


def parse_text(prefix: str, host: str, text: str) -> LogEntry:
    """Parse the parts of a line that ``split_prefix`` returns. Text after the fields of the combined format is ignored.

    The exception is a quoted text after the user agent that ends with an IP address: nginx's X-Forwarded-For.
    """
    match = _LINE.match(text)
    if match is None:
        raise NotCommonError("not in the common or combined format")
    client, identity, user, time, request, status, referer, user_agent, forwarded = match.groups()
    checked = _client_of(client, identity, user, bool(host))
    seconds = any_time(time)
    method, target = parse_request(_unescape(request))
    name = "common" if user_agent is None else "combined"
    features = {}
    if forwarded is not None and is_address(forwarded.rpartition(",")[2].strip()):
        name += " with X-Forwarded-For"
        features[FORWARDED_FOR] = _unescape(forwarded)
    return LogEntry(
        checked,
        parse_field(user),
        seconds,
        method,
        target._replace(host=target.host or host) if host else target,
        int(status),
        parse_field(referer),
        parse_field(user_agent),
        features,
        f"{name}{prefix}",
    )


def split_prefix(text: str) -> tuple[str, str, str]:
    """Return what a line begins with, such as " after a syslog prefix", its host name or "", and the line itself."""
    match = _PREFIX.match(text)
    if match is None or not match.end():
        return "", "", text
    host = match["host"] or ""
    if host and (is_address(host) or not (match["port"] or _HOST_NAME.fullmatch(host))):
        return "", "", text  # two addresses, or a word: either may be the client
    parts = [f"a {name} prefix" for name in ("syslog", "Kubernetes", "time") if match[name]] + ["a host name"] * bool(
        host
    )
    return f" after {' and '.join(parts)}", host, text[match.end() :]


@lru_cache(10_000)
def _client_of(client: str, identity: str, user: str, has_host: bool) -> str | None:
    """Return the client of a line; ``InvalidLineError`` where another of its first words may be the client."""
    if is_address(user) or is_address(identity):
        raise InvalidLineError("not one IP address before the time")
    if (identity != "-" or has_host) and not is_address(client):
        raise InvalidLineError("not in the common or combined format")
    return parse_client(None if client in _MISSING else client)


@lru_cache(10_000)
def parse_client(text: str | None) -> str | None:
    """Return an IP address without its port, or a host name; ``InvalidLineError`` for any other text."""
    if text is None or text.startswith("unix:"):
        return text
    address = parse_address(text) if len(text) <= _MAX_CLIENT else None
    if address is not None:
        return str(address)
    if len(text) > _MAX_CLIENT or not _HOST_NAME.fullmatch(text):
        raise InvalidLineError(f"the client {printable(text, 40)!r} is neither an IP address nor a host name")
    return text.lower()


@lru_cache(10_000)
def is_address(text: str) -> bool:
    """Return whether a text is an IP address, with or without a port."""
    return len(text) <= _MAX_CLIENT and parse_address(text) is not None


def text_of(line: bytes | str) -> str:
    """Return a line as text, without a byte order mark. Bytes that are not UTF-8 become the replacement character."""
    if len(line) > LONGEST_LINE and len(line.rstrip()) > LONGEST_LINE:
        raise InvalidLineError(f"longer than {LONGEST_LINE:,} bytes")
    return line if isinstance(line, str) else line.decode("utf-8", "replace").removeprefix("\ufeff")


def parse_request(request: str) -> tuple[str, RequestTarget]:
    """Parse a request line into method and target. Many lines have the same one."""
    return (_parse_cached if len(request) <= _MAX_CACHED_TEXT else _parse_request)(request)


def _parse_request(request: str) -> tuple[str, RequestTarget]:
    match = _REQUEST.fullmatch(request)
    if match is None:
        raise NoRequestError("not an HTTP request")
    return match[1].upper(), parse_target(match[2])


_parse_cached: Final = lru_cache(10_000)(_parse_request)


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
def parse_time(text: str) -> int:
    """Parse "17/May/2015:10:05:03 +0000" into seconds since 1970."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidLineError("the date is invalid")
    hour, minute, second = map(int, match.group(2, 3, 4))
    east, zone_minute = int(f"{match[5]}1"), int(match[7])
    if hour > 23 or minute > 59 or second > 60 or zone_minute > 59:
        raise InvalidLineError("the date is invalid")
    # A leap second becomes the second before.
    utc = _midnight(match[1]) + hour * 3600 + minute * 60 + min(second, 59)
    return int(checked_time(utc - east * (int(match[6]) * 3600 + zone_minute * 60)))


@lru_cache(1024)
def any_time(text: str) -> float:
    """Parse a time in the form of ``parse_time``, in ISO 8601, or in seconds since 1970.

    A time without a zone is in UTC: Daphne and HAProxy write none.
    """
    try:
        return parse_time(text)
    except InvalidLineError as error:
        if match := _WITHOUT_ZONE.fullmatch(text):
            return parse_time(f"{match[1]} +0000") + float(match[2] or 0)
        for parse in (float, seconds_of):
            with suppress(ValueError):
                return checked_time(parse(_SPACE.sub("", text)))
        raise error from None


def parse_status(value: Any) -> int:
    """Return a status; ``InvalidLineError`` for any other value."""
    try:
        status = int(value)
    except (TypeError, ValueError, OverflowError):
        status = -1
    if not 0 <= status <= 999:
        raise InvalidLineError("the status is invalid")
    return status


@lru_cache(64)
def _midnight(day: str) -> int:
    """Return the start of "17/May/2015" in UTC, in seconds since 1970."""
    try:
        return int(datetime.strptime(day, "%d/%b/%Y").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise InvalidLineError("the date is invalid") from None


def checked_time(seconds: float) -> float:
    """Return a time in seconds since 1970; ``InvalidLineError`` for one outside the years 1970 to 9999."""
    if seconds < 0:
        raise InvalidLineError("the date is before 1970")
    if not seconds < _END:
        raise InvalidLineError("the date is invalid")
    return seconds
