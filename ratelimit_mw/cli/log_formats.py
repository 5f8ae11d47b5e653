"""The formats of access logs by name, and ``LineParser``, which parses a line in the one that it has.

Each text format is one pattern. A line may have several formats only where they agree. The client writes the request,
the referer and the user agent, so no pattern takes the client from behind them.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

import msgspec

from ..http.client_ip import HEADERS_OF_HOPS
from ..http.request import only_value
from ..keys.features import INVALID
from ..keys.forms import counted_value
from .access_log import (
    FORWARDED_FOR,
    HeaderLineError,
    InvalidLineError,
    LogEntry,
    RequestTarget,
    decode_line,
    is_address,
    is_host_name,
    parse_client,
    parse_clients,
    parse_field,
    parse_request,
    parse_status,
    parse_target,
    parse_time,
    unescape,
)

# Prefixes of a line, by other programs, such as `docker logs -t`, and by vhost_combined of Apache.
_ISO: Final = r"\d{4}-\d\d-\d\dT[\d:.+Z-]{8,32}"
_RFC_5424: Final = rf"<\d{{1,3}}>1 {_ISO} \S+ \S+ \S+ \S+ (?:-|\[[^]]*\]) "
_SYSLOG: Final = (
    rf"{_RFC_5424}|(?:<\d{{1,3}}>)?(?:[A-Z][a-z]{{2}} [ \d]\d [\d:]{{8}}(?: [\w.:-]+)?|{_ISO} [\w.:-]+)"
    r" [\w./-]+(?:\[\d+\])?: "
)
_SITE: Final = r"(?P<host>[\w-]+(?:\.[\w-]+)*|\[[\da-fA-F:.]+\])(?P<port>:\d{1,5})? (?=[][\da-fA-F]*[.:]\S* )"
_PREFIX: Final = re.compile(
    rf"(?P<syslog>{_SYSLOG})?(?P<Kubernetes>{_ISO} (?:stdout|stderr) F )?(?P<time>{_ISO} (?!- ))?(?:{_SITE})?",
    re.ASCII,
)
_DATE: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_DATES: Final = re.compile(_DATE, re.ASCII)
_LOGGED: Final = rf"(?:\[{_DATE}\] \[\d+\] \[INFO\] )?"
_MESSAGE: Final = re.compile(
    rf"(?:\[?{_DATE}\]? )?(?:\[\d+\] )?\[?(?:DEBUG|INFO|WARNING|ERROR)\]?:? +(?!.*[ /]\d(?:\.\d)?\" -?\d).*\s*",
    re.ASCII,
)
"""A message of a server beside its access log: that of Gunicorn, uvicorn, Hypercorn, Daphne or Granian."""

# Possessive quantifiers (++, *+) fail at once on a line that does not match, without backtracking.
_REQUEST, _REFERER, _AGENT, _FORWARDED, _HOST, _IP = (
    rf'"(?P<{name}>(?:[^"\\]++|\\.)*+)"' for name in ("request", "referer", "agent", "forwarded", "host", "client")
)
_PEER: Final = r"(?P<client>\S{1,255}):\d+"
_STATUS: Final = r"(?P<status>\d{1,3}|-1)"
_UNTIL_STATUS: Final = rf'"(?P<method>\w+) (?P<target>.+) HTTP/\d(?:\.\d)?" {_STATUS}'
"""A request with the quotes that a client sends: these servers do not escape them, but write nothing behind it."""
_COMMON: Final = "common"
_TEXT: Final = {
    # The last field may be truncated: the fields before it are complete. Text after it is ignored.
    _COMMON: r"(?P<client>\S+) (?P<identity>\S+) (?P<user>\S*) ?\[(?P<time>[^][\"]{1,64})\]"
    rf" {_REQUEST} (?P<status>\d{{3}}) (?:\d+|-)(?!\S)(?: {_REFERER} {_AGENT[:-1]}(?:\" {_FORWARDED}(?!\S))?)?.*",
    # A client may write the end of the request into its referer or user agent: then the status is not certain.
    "hypercorn": rf'{_LOGGED}{_PEER} - - \[(?P<time>[^]]+)\] "(?P<method>\w+) (?P<target>(?:(?! [\d.]+" ).)+) [\d.]+"'
    rf' {_STATUS} \S+ "(?!.* [\d.]+" \d)(?>(?P<referer>.*?)" ")(?P<agent>.*)"',
    "daphne": rf'{_PEER} - - \[(?P<time>\d\d/\w{{3}}/\d{{4}}:[\d:]{{8}})\] "(?P<method>\w+) (?P<target>.+)" {_STATUS}'
    r" (?:\d+|-)",
    "granian": rf"\[(?P<time>{_DATE})\] (?P<client>\S+) - {_UNTIL_STATUS} [\d.]+",
    "uvicorn": rf'(?:\[?(?P<time>{_DATE}))?[^"]{{0,200}}?(?<!\S){_PEER} - {_UNTIL_STATUS}'
    r"(?: [A-Z][\w '-]*)?",
    "haproxy": rf'{_PEER} \[(?P<time>[^]]+)\] \S+ \S+ [-+\d/]+ {_STATUS} \+?\d+ [^"]*"(?P<request>[^"]*)'
    r'(?:"(?: \S+ \S+)?)?',
    "alb": rf"(?:https?|h2|grpcs?|wss?) (?P<time>{_DATE}) \S+ {_PEER} \S+ [-\d.]+ [-\d.]+ [-\d.]+"
    rf" {_STATUS} \S+ \d+ \d+ {_REQUEST} {_AGENT}.*",
    # The client is in X-Forwarded-For. Envoy escapes no quotes: a line has no more fields than these.
    "envoy": rf'\[(?P<time>{_DATE})\] {_REQUEST} {_STATUS} [^"]*(?:"[^"]*" [-\d ]+)?{_IP} {_AGENT} "[^"]*"'
    rf' {_HOST} "[^"]*"[^"]*',
}
_PATTERNS: Final = {name: re.compile(rf"{pattern}\s*", re.ASCII | re.DOTALL) for name, pattern in _TEXT.items()}
_GROUPS: Final = {"user": "user", "header:referer": "referer", "header:user-agent": "agent"}
"""The groups of the patterns for features."""
_DECODED: Final = ("hypercorn", "granian")
"""The formats with decoded paths and without queries."""
_VHOST: Final = "vhost_combined"
_ALIASES: Final = ("combined", _VHOST, "nginx", "gunicorn", "traefik-clf")
_W3C: Final = ("iis", "cloudfront")
_JSON: Final = ("json", "caddy", "traefik", "envoy-json", "envoy-gateway")
NAMES_OF_FORMATS: Final = (_COMMON, *_ALIASES, *[name for name in _TEXT if name != _COMMON], *_W3C, *_JSON)
_REQUIRED: Final = ("date", "time", "c-ip", "cs-method", "cs-uri-stem", "sc-status")
"""The columns of a log of the W3C format."""
_IS_HEADER: Final = re.compile(r"\(|forwarded-for", re.IGNORECASE)
"""A part of the name of a column with a header, which is written percent-encoded."""
_DOCKER: Final = ('{"log":', '{"log": ')

_Path = tuple[str, ...]

NAMES: Final[dict[str, str]] = {
    "time": "StartUTC start_time msec time_iso8601 ts @timestamp timestamp time StartLocal time_local"
    " EdgeStartTimestamp requestTime datetime",
    "ip": "remote_addr request.client_ip request.remote_ip ClientHost downstream_remote_address_without_port"
    " downstream_remote_address client_ip remote_ip client.ip source.ip httpRequest.remoteIp ClientIP remote_host"
    " client ip c-ip",
    "request": "request request_line",
    "method": "request_method request.method RequestMethod method http.request.method httpRequest.requestMethod"
    " ClientRequestMethod httpMethod cs-method",
    "path": "request_uri request.uri RequestPath x-envoy-origin-path path uri url.original url.path url "
    " httpRequest.requestUrl ClientRequestURI cs-uri-stem",
    "query": "query_string request_query args url.query cs-uri-query",
    "host": "http_host request.host RequestHost authority :authority host url.domain ClientRequestHost x-host-header"
    " vhost cs-host cs(Host)",
    "status": "status DownstreamStatus response_code http.response.status_code httpRequest.status EdgeResponseStatus"
    " status_code sc-status",
}
"""The names of each part of a request in the logs of common servers, most exact first."""
_FEATURES: Final = {
    "user": "remote_user user_id ClientUsername user.name user username cs-username",
    "header:user-agent": "user_agent user-agent user_agent.original httpRequest.userAgent ClientRequestUserAgent"
    " cs(User-Agent)",
    "header:referer": "referer httpRequest.referer http.request.referrer ClientRequestReferer cs(Referer)",
    FORWARDED_FOR: f"{FORWARDED_FOR} x_forwarded_for x-forwarded-for forwarded_for xff X-Forwarded-For"
    " cs(X-Forwarded-For)",
}
"""The same for features. Others are found by their own name."""
_HEADER: Final = "header:"
_CADDY_ERRORS: Final = "http.log.error"
_REQUEST_FIELDS: Final = ("request", "method", "path", "ip", "status")


class _Docker(msgspec.Struct):
    """A line of the log driver ``json-file`` of Docker."""

    log: str
    time: str


class _Line(NamedTuple):
    """A line without its prefix. ``label`` names the prefix, ``host`` and ``time`` are values of it."""

    text: str
    label: str = ""
    host: str = ""
    time: str = ""


class LineParser:
    """Parses a line. Without the name of a format, it finds the format of each line.

    Args:
        needs: The features that are read, such as those that the rules use.
        name: The only format to read; None for all.

    Attributes:
        found: The features, besides those of every log, that a line had.
    """

    def __init__(self, needs: Iterable[str] = (), name: str | None = None) -> None:
        needs = list(needs)
        self._fields = LogFields(needs)
        self._groups = {feature: group for feature, group in _GROUPS.items() if feature in needs}
        self._columns: list[str] = []
        self._has_host = name == _VHOST
        self._name = _COMMON if name in _ALIASES else name or ""
        self._last = self._name if self._name in _PATTERNS else _COMMON
        self.found: set[str] = set()

    def __call__(self, line: bytes | str) -> LogEntry:
        entry = self._parse(self._without_prefix(decode_line(line)))
        self.found.update(entry.features, ["host"] if entry.target.host else [])
        return entry

    def _parse(self, line: _Line) -> LogEntry:
        if line.text.startswith(_DOCKER):
            with suppress(msgspec.DecodeError, RecursionError):
                wrapped = msgspec.json.decode(line.text, type=_Docker)
                inner = self._without_prefix(wrapped.log)
                line = inner._replace(label=f"{inner.label} in a log of Docker", time=inner.time or wrapped.time)
        if self._name in _JSON or (line.text.startswith("{") and not self._name):
            return self._fields.parse_json(line.text, line.label)
        if line.text.startswith("#") and self._name in ("", *_W3C):
            self._columns = line.text.split()[1:] if line.text.startswith("#Fields:") else self._columns
            raise HeaderLineError("describes other lines")
        if _MESSAGE.fullmatch(line.text):
            raise HeaderLineError("a message of the server")
        if self._columns:
            with suppress(InvalidLineError):
                return self._of_columns(line.text)
        return self._of_text(line)

    def _without_prefix(self, text: str) -> _Line:
        match = _PREFIX.match(text)
        if match is None or not match.end():
            return _Line(text)
        host = match["host"] or ""
        if host and not self._has_host and (is_address(host) or not (match["port"] or is_host_name(host))):
            return _Line(text)  # two addresses, or a word: either may be the client
        parts = [f"a {name} prefix" for name in ("syslog", "Kubernetes", "time") if match[name]]
        parts += ["a host name"] * bool(host)
        date = _DATES.search(match[0])
        return _Line(text[match.end() :], f" after {' and '.join(parts)}", host, date[0] if date else "")

    def _of_text(self, line: _Line) -> LogEntry:
        """Parse a line in the format of the line before, else in the first one that it has."""
        if self._name in _W3C:
            raise InvalidLineError("not in the columns of a line #Fields before it")
        problem = None
        for name in (self._last,) if self._name else (self._last, *_PATTERNS):
            if match := _PATTERNS[name].fullmatch(line.text):
                try:
                    entry = _entry_of(match, name, line, self._groups)
                except InvalidLineError as error:
                    problem = problem or error
                else:
                    self._last = name
                    return entry
        expected = f"format {self._name}" if self._name not in ("", _COMMON) else "common or combined format"
        raise problem or InvalidLineError(f"not in the {expected}")

    def _of_columns(self, text: str) -> LogEntry:
        """Parse a line of the fields that ``#Fields`` names (W3C extended log file format)."""
        values = text.rstrip("\r\n").split("\t" if "\t" in text else " ")
        row = {name: value for name, value in zip(self._columns, values, strict=False) if value not in ("-", "")}
        if len(values) != len(self._columns) or not all(map(row.get, _REQUIRED)):
            raise InvalidLineError(f"not the columns of #Fields, among them {', '.join(_REQUIRED)}")
        row = {name: unquote_plus(value) if _IS_HEADER.search(name) else value for name, value in row.items()}
        row["time"] = f"{row['date']} {row['time']}"
        return self._fields.entry(row, "cloudfront" if "x-edge-location" in self._columns else "iis")


def _entry_of(match: re.Match[str], name: str, line: _Line, groups: Mapping[str, str]) -> LogEntry:
    """Return the request of a line in a text format, with the features that these groups have."""
    found = match.groupdict()
    features = {}
    for feature, group in groups.items():
        if (value := parse_field(found.get(group))) is not None:
            features[feature] = value
    if name == _COMMON:
        client = _first_word(found["client"], found["identity"], found["user"], bool(line.host))
        name = _COMMON if found["agent"] is None else "combined"
        forwarded = found["forwarded"]
        if forwarded is not None and is_address(forwarded.rpartition(",")[2].strip()):
            name += " with X-Forwarded-For"
            features[FORWARDED_FOR] = unescape(forwarded)
    else:
        client = parse_clients(parse_field(found["client"]))
    time = found["time"] or line.time
    if not time:
        fix = "Read the log of its container or journalctl -o short-iso, or begin its format with %(asctime)s in UTC"
        raise InvalidLineError(f"{name} writes no time. {fix}")
    if method := found.get("method"):
        target = RequestTarget(found["target"]) if name in _DECODED else parse_target(found["target"])
    else:
        method, target = parse_request(parse_field(found["request"]) or "")
    host = target.host or parse_field(found.get("host")) or line.host
    return LogEntry(
        client,
        parse_time(time),
        method.upper(),
        target._replace(host=host) if host else target,
        max(0, int(found["status"])),  # HAProxy and Envoy write -1 and 0 for a client that left before the response
        features,
        f"{name}{line.label}",
    )


@lru_cache(10_000)
def _first_word(client: str, identity: str, user: str, has_host: bool) -> str | None:
    """Return the client of a line; ``InvalidLineError`` where another of its first words may be the client."""
    if is_address(user) or is_address(identity):
        raise InvalidLineError("not one IP address before the time")
    if (identity != "-" or has_host) and not is_address(client):
        raise InvalidLineError("not in the common or combined format")
    return parse_client(parse_field(client))


class LogFields:
    """Finds the parts of a request, and the features among ``needs``, in the fields of a line."""

    def __init__(self, needs: Iterable[str]) -> None:
        self._features = [name for name in dict.fromkeys(needs) if name not in NAMES]
        self._paths = {name: _paths(name) for name in (*NAMES, *self._features)}

    def parse_json(self, text: str, label: str) -> LogEntry:
        """Return the request of a JSON line. ``label`` is what its format is called behind "JSON lines"."""
        try:
            fields = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise InvalidLineError("not JSON")
        if self._is_message(fields):
            raise HeaderLineError("a message of the server")
        return self.entry(fields, f"JSON lines{label}")

    def entry(self, fields: dict[str, Any], name: str) -> LogEntry:
        """Return the request of a line. ``name`` is that of its format."""
        method, target = self._request(fields)
        values = ((each, _feature(each, self._find(fields, each))) for each in self._features)
        return LogEntry(
            parse_clients(_joined(self._required(fields, "ip"))),
            _seconds(self._required(fields, "time")),
            method,
            target,
            parse_status(self._required(fields, "status")),
            {each: value for each, value in values if value is not None},
            name,
        )

    def _is_message(self, fields: dict[str, Any]) -> bool:
        """Return whether Caddy or Traefik wrote a message. Caddy writes one with the request of each error."""
        if type(fields.get("level")) is not str:
            return False
        is_error = str(fields.get("logger")).startswith(_CADDY_ERRORS)
        return is_error or all(self._find(fields, name) is None for name in _REQUEST_FIELDS)

    def _request(self, fields: dict[str, Any]) -> tuple[str, RequestTarget]:
        """Return method and target, from fields of their own or from the request line."""
        method, path = _text(self._find(fields, "method")), _text(self._find(fields, "path"))
        if method is not None and path is not None:
            target = parse_target(path)
        else:
            line = self._find(fields, "request")
            if line is None:  # a server writes an empty method and path for what is no HTTP
                line = self._required(fields, "path" if path is None else "method")
            method, target = parse_request(str(line))
        host = target.host or _text(self._find(fields, "host")) or ""
        query = target.query or _text(self._find(fields, "query")) or ""
        return method.upper(), RequestTarget(target.path, query, host)

    def _find(self, fields: dict[str, Any], name: str) -> Any:
        """Return the first value that is there; None when each is missing, null or a table."""
        for path in self._paths[name]:
            value = fields.get(path[0]) if len(path) == 1 else _inside(fields, path)
            if value is not None and type(value) is not dict:
                return value
        return None

    def _required(self, fields: dict[str, Any], name: str) -> Any:
        value = self._find(fields, name)
        if value is None:
            raise InvalidLineError(f"no field for the {name}")
        return value


def _paths(name: str) -> list[_Path]:
    """Return the places of a field. A dot may be a part of a name, or may separate names."""
    names = (NAMES.get(name) or _FEATURES.get(name, name)).split()
    if name.startswith(_HEADER):
        header = name.removeprefix(_HEADER)
        title = "-".join(word.capitalize() for word in header.split("-"))
        names = [f"http_{header.replace('-', '_')}", f"request.headers.{title}", f"request_{title}", *names]
    return [path for text in names for path in dict.fromkeys([(text,), tuple(text.split("."))])]


def _inside(fields: Any, path: _Path) -> Any:
    for name in path:
        if type(fields) is not dict:
            return None
        fields = fields.get(name)
    return fields


def _text(value: Any) -> str | None:
    """Return a value as text; None for what servers write for a missing value. A list has the values of a header."""
    if type(value) is list:
        value = value[0] if value else None
    return None if value is None or value in ("", "-") else value if type(value) is str else str(value)


def _joined(value: Any) -> str | None:
    """Return the lines of a header with a list as one text."""
    return _text(",".join(map(str, value)) if type(value) is list else value)


def _feature(name: str, value: Any) -> Any:
    """Return the value of a feature as the middleware has it: several lines of a header are INVALID."""
    if name.removeprefix(_HEADER) in HEADERS_OF_HOPS:
        return _joined(value)
    if type(value) is list:
        has_lines = name.startswith(_HEADER) and len(value) > 1
        value = INVALID if has_lines else only_value([_text(item) for item in value])
    if _text(value) is None:
        return None
    if type(value) is float:
        value = str(value)
    return counted_value(name, value)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidLineError("the date is invalid")
    return parse_time(value)
