"""Translates between a gateway and the middleware: the request that a gateway asks about, and the response it reads.

One convention for each gateway, and only headers that the gateway overwrites. Rules that it cannot ask about
are errors.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from ...asgi.request import ASGIRequest
from ...asgi.types import Message, Scope, Send
from ...errors import ConfigError, error_path
from ...http.needs import requires_user
from ...http.warnings import warn
from ...keys.parts import Part, part_of
from ...rules.compiled import CompiledRule
from ...rules.plan import Plan
from ...rules.ruleset import RuleSet
from ...settings import Settings


class ProblemError(Exception):
    """Ends a request with this status, a message, and the headers of the response."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gateway(NamedTuple):
    """The headers in which a gateway sends the original request. All names are in lower case."""

    method: bytes
    uri: bytes
    host: bytes
    reads_statuses: bool
    """Whether the gateway sends our response to the client. nginx reads 2xx, 401 and 403 only, and drops the body."""
    drops: re.Pattern[str]
    """The headers of a client that never arrive: the gateway asks without the body, over a connection of its own."""

    @property
    def own(self) -> tuple[bytes, ...]:
        """The headers that arrive and are none of the client's."""
        return self.method, self.uri, self.host, b"host", *(() if self.reads_statuses else (b"accept",))

    def sends(self, header: str) -> bool:
        """Return whether a header of the client arrives. The host does, in a header of the gateway."""
        return header == "host" or (not self.drops.fullmatch(header) and header.encode() not in self.own)


_HOP: Final = "connection|content-length|keep-alive|te|transfer-encoding|upgrade"
_DROPPED_BY_GO: Final = re.compile(f"{_HOP}|proxy-.*|trailer")  # the library of Traefik and Caddy
_DROPPED_BY_NGINX: Final = re.compile(f"{_HOP}|expect|forwarded|.*[^a-z0-9-].*")  # such as x_api_key
_FORWARDED: Final = Gateway(b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host", True, _DROPPED_BY_GO)
GATEWAYS: Final = {
    "nginx": Gateway(b"x-original-method", b"x-original-uri", b"host", False, _DROPPED_BY_NGINX),
    "traefik": _FORWARDED,
    "caddy": _FORWARDED,
}
_STATUS: Final = b"x-ratelimit-status"
_BODY: Final = b"x-ratelimit-body"
_SENT: Final = ("ip", "user", "method", "path", "host", "region", "priority", "header", "cookie", "query")
"""The features, and families of features, that the request of a gateway has."""
_PATHS: Final = 'Count all paths together, or write a rule with match = { path = "..." } for each'
_FIX: Final = 'Set match = { view = "" } and decide the rule with POST /v1/check'
_HEADER_OF_USER: Final = 'Let the gateway name the user in a header, and write its name, such as "header:x-user"'
_MISSING: Final = "the header {} is missing. The gateway must set it"
_INVALID: Final = re.compile(rb"[\x00-\x20\x7f#]")
"""No browser sends these, and readers end the target there, or drop them: in "/login#/../x" and "?key=K#1"."""

_MOVING: Final = "script_name|daphne-root-path"
"""Gunicorn and Daphne remove the prefix in these headers from the path, even if a client has sent them."""


def invalid_headers(used: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern of headers by which a server may see another path or other headers than the rules.

    Servers read hyphens and underscores in names alike.

    Args:
        used: The names of the headers that the rules use.
    """
    names = [re.escape(name) for name in used]
    spellings = [re.sub(r"\\-|_", "[-_]", name) for name in names]
    others = rf"(?!(?:{'|'.join(names)})\Z)(?:{'|'.join(spellings)})"
    return re.compile(f"{_MOVING}|{others}".encode("latin-1"))


def original_scope(scope: Scope, gateway: Gateway, client_header: str, invalid: re.Pattern[bytes]) -> Scope:
    """Return the scope of the request that the gateway asks about. ``invalid`` is the pattern of invalid headers.

    Raises:
        ConfigError: A header of the gateway is missing. Without ``client_header``, which has the address of the client,
            all clients would share the limits of the gateway.
        ProblemError: The client has sent an invalid target or header.
    """
    if not any(value for name, value in scope["headers"] if name == client_header.encode()):
        raise ConfigError(_MISSING.format(client_header.title()))
    host = _value(scope, gateway.host)
    own = gateway.own
    headers = [(name, value) for name, value in scope["headers"] if name not in own]
    for name, _ in headers:
        if invalid.fullmatch(name):
            shown = name.decode("latin-1")
            raise ProblemError(400, f"expected no header {shown!r}, which servers read in several ways")
    method = _value(scope, gateway.method).decode("latin-1").upper()
    target = target_scope(_value(scope, gateway.uri))
    return {**scope, **target, "method": method, "headers": [(b"host", host), *headers]}


def _value(scope: Scope, name: bytes) -> bytes:
    values: list[bytes] = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise ConfigError(
            f"the header {name.decode().title()} was sent {len(values)} times. The gateway must overwrite it"
        )
    if not values or not values[0]:
        raise ConfigError(_MISSING.format(name.decode().title()))
    return values[0]


def target_scope(target: bytes) -> dict[str, Any]:
    """Return the path and the query of a request target, as a server writes them into a scope.

    The path stays as it was sent. The gateway, the server and the application may each resolve dot segments, or not:
    rules read a path in all these ways.

    Raises:
        ProblemError: The target is none that a browser sends.
    """
    if target.startswith(b"?"):  # nginx sends no host: "GET http://shop.example?page=1"
        target = b"/" + target
    raw, _, query = target.partition(b"?")
    path = unquote_to_bytes(raw).decode(errors="replace")
    if not path.startswith("/") and path != "*":
        raise ProblemError(400, f"expected a path that starts with /; got {path[:100]!r}")
    if _INVALID.search(target):
        shown = target[:100].decode("latin-1")
        raise ProblemError(400, f"expected a path without '#', spaces and control characters; got {shown!r}")
    return {"path": path, "raw_path": raw, "query_string": query, "root_path": ""}


def path_of_target(target: str) -> str:
    """Return the path of a request target as rules see it. A program may leave spaces as they are."""
    sent = target_scope(target.replace(" ", "%20").encode(errors="surrogatepass"))
    return ASGIRequest({"type": "http", "headers": [], **sent}).sent_path


def response_sender(send: Send, gateway: Gateway) -> Send:
    """Return a ``send`` for a response of one body message, in the form that the gateway reads.

    The response to a rejected HEAD has the length of a body and no body. The gateway has sent a GET.
    """
    start: Message = {}

    async def send_in_form(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        status, body = start["status"], message.get("body", b"")
        headers = [header for header in start["headers"] if header[0] != b"content-length"]
        if status >= 400 and not gateway.reads_statuses:
            headers += [(_STATUS, b"%d" % status), (_BODY, body.strip())]
            status = 403
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({**start, "status": status, "headers": headers})
        await send(message)

    return send_in_form


def check_for_gateway(rules: RuleSet, settings: Settings, gateway: Gateway) -> None:
    """Raise ``ConfigError`` for rules that no request of a gateway can have: no limit goes missing silently."""
    if not settings.trusted_proxies:
        message = 'the service must trust the gateway, which names the clients. Set trusted_proxies = ["127.0.0.1"]'
        raise ConfigError(message, "trusted_proxies")
    headers = {"region_header": settings.region_header, "priorities.header": settings.priorities.header}
    for name, header in headers.items():
        if not gateway.sends(header):
            raise ConfigError(f"a gateway does not send the header {header!r}. Choose another one", name)
    for rule in rules.rules:
        if not rule.source.matches.is_only_named:
            check_decided_at_once(rule)
            if "user" in rule.source.needs and not requires_user(rule):
                warn(f"the rule {rule.name!r} counts no user. {_HEADER_OF_USER}", "no-user-header")
            with rule.located():
                _check_sent(rule.source.parts, gateway, requires_user(rule))
    with error_path("lists"):
        _check_sent(rules.own_lists.parts, gateway, "user" in rules.own_lists.needs)


def _check_sent(parts: tuple[Part, ...], gateway: Gateway, lacks_user: bool) -> None:
    if lacks_user:
        raise ConfigError(f"uses the feature 'user'. {_HEADER_OF_USER}")
    for part in parts:
        name = part.removeprefix("email:")
        family, _, header = part_of(name).feature.partition(":")
        if family not in _SENT or (family == "header" and not gateway.sends(header)):
            fix = _PATHS if name in ("endpoint", "view") else _FIX
            raise ConfigError(f"uses the feature {part!r}, which a gateway does not send. {fix}")


def check_decided_at_once(rule: CompiledRule) -> None:
    """Raise ``ConfigError`` for a rule that needs the response, which the service does not see."""
    if Plan([rule]).needs_settlement:
        message = "the service sees no response, so it has no use for concurrent limits, target and count_when"
        raise rule.error(f"{message}. Use the rule in the middleware of the application")
