"""Reads access logs of JSON lines: those of Caddy, Traefik, Envoy and others, and those that you define in nginx.

A field is found by its name, or by its path, such as ``request.headers.User-Agent``.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..errors import ConfigError
from ..http.client_ip import HEADERS_OF_HOPS
from ..http.request import only_value
from ..keys.features import INVALID, is_email
from ..keys.forms import normalized_email
from ..keys.parts import checked_part
from .access_log import (
    FORWARDED_FOR,
    InvalidLineError,
    LogEntry,
    RequestTarget,
    any_time,
    checked_time,
    parse_client,
    parse_request,
    parse_status,
    parse_target,
)

_Path = tuple[str, ...]

NAMES: Final[dict[str, str]] = {
    "time": "StartUTC start_time msec time_iso8601 ts @timestamp timestamp time StartLocal time_local"
    " EdgeStartTimestamp requestTime datetime",
    "ip": "remote_addr request.client_ip request.remote_ip ClientHost downstream_remote_address_without_port"
    " downstream_remote_address client_ip remote_ip client.ip source.ip httpRequest.remoteIp ClientIP remote_host"
    " client ip",
    "user": "remote_user user_id ClientUsername user.name user username",
    "request": "request request_line",
    "method": "request_method request.method RequestMethod method http.request.method httpRequest.requestMethod"
    " ClientRequestMethod httpMethod",
    "path": "request_uri request.uri RequestPath x-envoy-origin-path path uri url.original url.path url "
    " httpRequest.requestUrl ClientRequestURI",
    "query": "query_string args url.query",
    "host": "http_host request.host RequestHost authority :authority host url.domain ClientRequestHost",
    "status": "status DownstreamStatus response_code http.response.status_code httpRequest.status EdgeResponseStatus"
    " status_code",
    "header:user-agent": "user_agent user-agent user_agent.original httpRequest.userAgent ClientRequestUserAgent",
    "header:referer": "referer httpRequest.referer http.request.referrer ClientRequestReferer",
}
"""The names of each part of a request in the logs of common servers, most exact first."""
_PARTS: Final = ("time", "ip", "user", "method", "path", "host", "status")
"""The parts that ``--field`` may name besides features."""
_HEADER: Final = "header:"
_NUMBERS_FROM: Final = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3))
"""A time of at least the first number is in this part of a second."""


class JsonLines:
    """Parses JSON lines, by the fields that ``NAMES`` or ``fields`` name, with the headers among ``needs``."""

    def __init__(self, fields: Mapping[str, str], needs: Iterable[str]) -> None:
        names = dict.fromkeys((*NAMES, *(name for name in needs if name.startswith(_HEADER)), *fields))
        self._paths = {name: _paths(name, fields.get(name)) for name in names}
        self._extra = [name for name in names if name not in NAMES]
        self._fields = fields

    def parse(self, text: str, label: str) -> LogEntry:
        """Return the request of a line. ``label`` is what its format is called behind "JSON lines"."""
        try:
            record = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InvalidLineError("not JSON")
        method, target = self._request(record)
        return LogEntry(
            client_of(self._required(record, "ip")),
            _text(self._find(record, "user")),
            _seconds(self._required(record, "time")),
            method,
            target,
            parse_status(self._required(record, "status")),
            _text(self._find(record, "header:referer")),
            _text(self._find(record, "header:user-agent")),
            self._features(record) if self._extra else {},
            f"JSON lines{label}",
        )

    def _request(self, record: dict[str, Any]) -> tuple[str, RequestTarget]:
        """Return method and target, from fields of their own or from the request line."""
        method, path = _text(self._find(record, "method")), _text(self._find(record, "path"))
        if method is None or path is None:
            line = self._find(record, "request")
            if not isinstance(line, str):
                self._required(record, "path" if path is None else "method")
                raise InvalidLineError("not an HTTP request")
            method, target = parse_request(line)
        else:
            target = parse_target(path)
        host = target.host or _text(self._find(record, "host")) or ""
        query = target.query or _text(self._find(record, "query")) or ""
        return method.upper(), RequestTarget(target.path, query, host)

    def _features(self, record: dict[str, Any]) -> dict[str, Any]:
        values = ((name, _feature(name, self._find(record, name))) for name in self._extra)
        return {name: value for name, value in values if value is not None}

    def _find(self, record: dict[str, Any], name: str) -> Any:
        """Return the first value that is there; None when each is missing, null or a table."""
        for path in self._paths[name]:
            value = record.get(path[0]) if len(path) == 1 else _inside(record, path)
            if value is not None and type(value) is not dict:
                return value
        return None

    def _required(self, record: dict[str, Any], name: str) -> Any:
        value = self._find(record, name)
        if value is None and not any(_has(record, path) for path in self._paths[name]):
            if name in self._fields:
                raise InvalidLineError(f"no field {self._fields[name]!r} for the {name}")
            raise InvalidLineError(f"no field for the {name}. Name it with --field {name}=FIELD")
        return value


def check_field(text: str) -> tuple[str, str]:
    """Parse the NAME=FIELD of ``--field``; ``ConfigError`` for a name that is no part of a request and no feature."""
    name, equals, field = text.partition("=")
    if not equals or not field:
        raise ConfigError(f"expected NAME=FIELD, for example user=account.id; got {text!r}")
    if name in _PARTS:
        return name, field
    part = checked_part(name, in_key=False)
    if " as " in part or part.startswith("query:"):
        raise ConfigError(f"expected a feature, or one of {', '.join(_PARTS)}; got {name!r}")
    return part, field


def _paths(name: str, given: str | None) -> list[_Path]:
    """Return the places of a field. A dot may be a part of a name, or may separate names."""
    names = [given] if given is not None else NAMES.get(name, "").split()
    if given is None and name.startswith(_HEADER):
        header = name.removeprefix(_HEADER)
        title = "-".join(word.capitalize() for word in header.split("-"))
        names = [f"http_{header.replace('-', '_')}", f"request.headers.{title}", f"request_{title}", *names]
    if given is None and name == FORWARDED_FOR:
        names = [*names, "x_forwarded_for", "x-forwarded-for", "forwarded_for", "xff"]
    return [path for text in names for path in dict.fromkeys([(text,), tuple(text.split("."))])]


def _inside(record: Any, path: _Path) -> Any:
    for name in path:
        if type(record) is not dict:
            return None
        record = record.get(name)
    return record


def _has(record: Any, path: _Path) -> bool:
    return type(inner := _inside(record, path[:-1])) is dict and path[-1] in inner


def _text(value: Any) -> str | None:
    """Return a value as text; None for what servers write for a missing value. A list has the values of a header."""
    if type(value) is list:
        value = value[0] if value else None
    return None if value is None or value in ("", "-") else value if type(value) is str else str(value)


def client_of(value: Any) -> str | None:
    """Return the client, or the list of X-Forwarded-For. A proxy adds to its right, so an address must be there."""
    text = _joined(value)
    if text is None or "," not in text:
        return parse_client(text)
    parse_client(text.rpartition(",")[2].strip())
    return text


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
    return normalized_email(value) if is_email(name) and isinstance(value, str) else value


def _seconds(value: Any) -> float:
    """Return a time in seconds since 1970, from a number, ISO 8601, or the form of the combined format."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, str):
        return any_time(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidLineError("the date is invalid")
    part = next((part for least, part in _NUMBERS_FROM if value >= least), 1)
    return checked_time(value / part) if value < 1e20 else checked_time(value)
