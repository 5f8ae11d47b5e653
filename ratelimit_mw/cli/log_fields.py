"""Reads lines of fields with names: JSON lines of Caddy, Traefik, Envoy, nginx and others, and the columns of W3C.

A field is found by its name, or by its path, such as ``request.headers.User-Agent``.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ..http.client_ip import HEADERS_OF_HOPS
from ..http.request import only_value
from ..keys.features import INVALID, is_email
from ..keys.forms import normalized_email
from .access_log import (
    FORWARDED_FOR,
    HeaderLineError,
    InvalidLineError,
    LogEntry,
    RequestTarget,
    client_of,
    parse_request,
    parse_status,
    parse_target,
    parse_time,
)

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
_OF_A_REQUEST: Final = ("request", "method", "path", "ip", "status")


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
            client_of(_joined(self._required(fields, "ip"))),
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
        return is_error or all(self._find(fields, name) is None for name in _OF_A_REQUEST)

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
    return normalized_email(value) if is_email(name) and isinstance(value, str) else value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidLineError("the date is invalid")
    return parse_time(value)
