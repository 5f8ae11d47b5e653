"""The formats of access logs by name, and ``LineParser``, which parses a line in the one that it has.

Each text format is one pattern. A line may have several formats only where they agree. The client writes the request,
the referer and the user agent, so no pattern takes the client from behind them.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote_plus

import msgspec

from .access_log import (
    FORWARDED_FOR,
    QUOTED,
    InvalidLineError,
    LogEntry,
    NotCommonError,
    any_time,
    parse_client,
    parse_field,
    parse_request,
    parse_status,
    parse_target,
    parse_text,
    split_prefix,
    text_of,
)
from .json_lines import JsonLines, client_of

_DATE: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_LOGGED: Final = rf"(?:\[{_DATE}\] \[\d+\] \[INFO\] )?"
_DATES: Final = re.compile(_DATE, re.ASCII)
_MESSAGE: Final = re.compile(
    rf"(?:\[?{_DATE}\]? )?(?:\[\d+\] )?\[?(?:DEBUG|INFO|WARNING|ERROR)\]?:? +(?!.* HTTP/\d|.* \d(?:\.\d)?\" \d).*",
    re.ASCII,
)
"""A message of a server beside its access log: that of Gunicorn, uvicorn, Hypercorn, Daphne or Granian."""
_DOCKER: Final = ('{"log":', '{"log": ')
_IN_DOCKER: Final = " in a log of Docker"
_REQUIRED: Final = ("date", "time", "c-ip", "cs-method", "cs-uri-stem", "sc-status")
_REQUEST: Final = QUOTED.replace("(", "(?P<request>", 1)
_AGENT: Final = QUOTED.replace("(", "(?P<agent>", 1)
_REFERER: Final = QUOTED.replace("(", "(?P<referer>", 1)
_FORWARDED: Final = QUOTED.replace("(", "(?P<forwarded>", 1)
_HOST: Final = QUOTED.replace("(", "(?P<host>", 1)
_CLIENT: Final = r"(?P<client>\S{1,255}):\d+"
_STATUS: Final = r"(?P<status>\d{1,3}|-1)"
_TEXT: Final = {
    "hypercorn": rf'{_LOGGED}{_CLIENT} - - \[(?P<time>[^]]+)\] "(?P<method>\w+) (?P<target>\S+) \d(?:\.\d)?"'
    rf" {_STATUS} \S+ {_REFERER} {_AGENT}",
    "daphne": rf'{_CLIENT} - - \[(?P<time>\d\d/\w{{3}}/\d{{4}}:[\d:]{{8}})\] "(?P<method>\w+) (?P<target>[^"]+)"'
    rf" {_STATUS} (?:\d+|-)",
    "granian": rf"\[(?P<time>{_DATE})\] (?P<client>\S+) - {_REQUEST} {_STATUS} [\d.]+",
    "uvicorn": rf'(?P<time>[^"]{{0,200}}?)(?:INFO:? +)?{_CLIENT} - {_REQUEST} {_STATUS}(?: [A-Z][\w \'-]*)?',
    "haproxy": rf"{_CLIENT} \[(?P<time>[^]]+)\] \S+ \S+ [-+\d/]+"
    rf' {_STATUS} \+?\d+ [^"]*"(?P<request>[^"]*)"?',
    "alb": rf"(?:https?|h2|grpcs?|wss?) (?P<time>{_DATE}) \S+ {_CLIENT} \S+ [-\d.]+ [-\d.]+ [-\d.]+"
    rf" {_STATUS} \S+ \d+ \d+ {_REQUEST} {_AGENT}.*",
    "envoy": rf'\[(?P<time>{_DATE})\] {_REQUEST} {_STATUS} [^"]*(?:"[^"]*" [-\d ]+)?{_FORWARDED} {_AGENT} "[^"]*"'
    rf' {_HOST} "[^"]*"[^"]*',  # Envoy escapes no quotes: a line has no more fields than these
}
"""The text formats besides those of Apache and nginx, whose pattern is in ``access_log.py``."""
_PATTERNS: Final = {name: re.compile(pattern, re.ASCII) for name, pattern in _TEXT.items()}
_COMMON: Final = ("common", "combined", "vhost_combined", "nginx", "gunicorn", "traefik-clf")
_JSON: Final = ("json", "caddy", "traefik", "envoy-json", "envoy-gateway")
_W3C: Final = ("iis", "cloudfront")
NAMES_OF_FORMATS: Final = (*_COMMON, *_PATTERNS, *_W3C, *_JSON)
_NO_TIME: Final = (
    "uvicorn writes no time. Read the log of its container, or add %(asctime)s in UTC to the format of its access log"
)


class _Docker(msgspec.Struct):
    """A line of the log driver ``json-file`` of Docker."""

    log: str
    time: str


class HeaderLineError(InvalidLineError):
    """The line describes the lines behind it, or is a message of the server."""


class NoTimeError(InvalidLineError):
    """The line has no time."""


class LineParser:
    """Parses a line. Without the name of a format, it finds the format of each line.

    Args:
        fields: The fields of JSON lines, for example ``{"user": "account.id"}``, instead of those in ``NAMES``.
        needs: The features that the rules use. Headers among them are found automatically.
        name: The only format to read; "" for all.

    Attributes:
        found: The features, besides those of every log, that a line had.
    """

    def __init__(self, fields: Mapping[str, str] | None = None, needs: Iterable[str] = (), name: str = "") -> None:
        self._json = JsonLines(fields or {}, needs)
        self._columns: list[str] = []
        self._name = name
        self._last = name if name in _PATTERNS else _COMMON[0]
        self.found: set[str] = set()

    def __call__(self, line: bytes | str) -> LogEntry:
        entry = self._parse(text_of(line))
        self.found.update(entry.features, ["host"] if entry.target.host else [])
        return entry

    def _parse(self, text: str, place: str = "") -> LogEntry:
        prefix, host, rest = split_prefix(text)
        label = f"{prefix}{place}"
        if rest.startswith(_DOCKER) and not place:
            with suppress(msgspec.DecodeError):
                wrapped = msgspec.json.decode(rest, type=_Docker)
                try:
                    return self._parse(wrapped.log, _IN_DOCKER)
                except NoTimeError:
                    return self._parse(f"{wrapped.time} {wrapped.log}", _IN_DOCKER)
        if self._name in _JSON or (rest.startswith("{") and not host and not self._name):
            return self._json.parse(rest, label)
        if text.startswith("#") and self._name in ("", *_W3C):
            self._columns = text.split()[1:] if text.startswith("#Fields:") else self._columns
            raise HeaderLineError("describes other lines")
        if _MESSAGE.fullmatch(rest.rstrip()):
            raise HeaderLineError("a message of the server")
        if self._columns:
            with suppress(InvalidLineError):
                return self._of_columns(text)
        return self._of_text(text, host, rest, label)

    def _of_text(self, text: str, host: str, rest: str, label: str) -> LogEntry:
        """Parse a line in the format of the line before, else in the first one that it has."""
        if self._name in _W3C:
            raise InvalidLineError("not in the columns of a line #Fields before it")
        problems: list[InvalidLineError] = []
        for name in (self._last,) if self._name else (self._last, _COMMON[0], *_PATTERNS):
            try:
                entry = self._in_format(name, text, host, rest, label)
            except InvalidLineError as error:
                problems.append(error)
            else:
                if entry is not None:
                    self._last = name
                    return entry
        unknown = problems[0] if problems else InvalidLineError(f"not in the format {self._last}")
        raise next((each for each in problems if not isinstance(each, NotCommonError)), unknown)

    def _in_format(self, name: str, text: str, host: str, rest: str, label: str) -> LogEntry | None:
        """Return the request of a line; None for one in another format."""
        if name == _COMMON[0]:
            return parse_text(label, host, rest)
        match = _PATTERNS[name].fullmatch((text if name == "uvicorn" else rest).rstrip())
        return None if match is None else _entry_of(match, f"{name}{label}")

    def _of_columns(self, text: str) -> LogEntry:
        """Parse a line of the fields that ``#Fields`` names (W3C extended log file format)."""
        values = text.rstrip("\r\n").split("\t" if "\t" in text else " ")
        row = {name: None if value in ("-", "") else value for name, value in zip(self._columns, values, strict=False)}
        if len(values) != len(self._columns) or not all(map(row.get, _REQUIRED)):
            raise InvalidLineError(f"not the columns of #Fields, among them {', '.join(_REQUIRED)}")
        query, agent, referer = (row.get(name) for name in ("cs-uri-query", "cs(User-Agent)", "cs(Referer)"))
        forwarded = row.get("x-forwarded-for") or row.get("X-Forwarded-For") or row.get("cs(X-Forwarded-For)")
        target = parse_target(f"{row['cs-uri-stem']}{f'?{query}' * bool(query)}")
        host = row.get("x-host-header") or row.get("cs-host") or row.get("cs(Host)") or ""
        return LogEntry(
            parse_client(row["c-ip"]),
            row.get("cs-username"),
            any_time(f"{row['date']} {row['time']}"),
            str(row["cs-method"]).upper(),
            target._replace(host=target.host or host),
            parse_status(row["sc-status"]),
            referer,
            agent and unquote_plus(agent),
            {FORWARDED_FOR: unquote_plus(forwarded)} if forwarded else {},
            "cloudfront" if "x-edge-location" in self._columns else "iis",
        )


def _entry_of(match: re.Match[str], label: str) -> LogEntry:
    found = match.groupdict()
    time = found["time"]
    if label.startswith("uvicorn"):
        dates = _DATES.findall(time)
        if not dates:
            raise NoTimeError(_NO_TIME)
        time = dates[0]
    if request := found.get("request"):
        method, target = parse_request(parse_field(request) or "")
    else:
        method, target = str(found.get("method")).upper(), parse_target(str(found.get("target")))
    host = target.host or parse_field(found.get("host")) or ""
    return LogEntry(
        client_of(found.get("client") or parse_field(found.get("forwarded"))),
        None,
        any_time(time),
        method,
        target._replace(host=host),
        max(0, int(found["status"])),  # HAProxy and Envoy write -1 and 0 for a client that left before the response
        parse_field(found.get("referer")),
        parse_field(found.get("agent")),
        {},
        label,
    )
