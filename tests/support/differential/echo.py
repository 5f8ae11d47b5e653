"""The server's half: compares what the limiter read of a request with what the application itself reads.

It changes ``Limiter``, so only the process of a server imports it.

A view passes its own readings to ``report``, several for a feature that an application can read in several ways. The
response has the differences in the header ``x-differs``. The totals are at ``/differential-totals``.
"""

import ipaddress
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from ratelimit_mw import INVALID, Limiter

UNREAD = object()
"""The reading of an application that rejects the request, or that does not look for this feature."""

LIMIT = {"limits": "1000000000/hour", "algorithm": "fixed-window"}
FIELDS = ["header:x-key", "cookie:sid", "query:q", "form:q", "json:q", "email"]
KEY = ["ip", "method", "path", "host", "endpoint", *FIELDS]
# The pattern and the methods of each rule. A view with the pattern as its template must have had the rule.
PATTERNS: dict[str, tuple[str, list[str]]] = {
    "login": ("/login", []),
    "post": ("/login", ["POST"]),
    "item": ("/items/{id}", []),
    "files": ("/files/**", []),
    "thing": ("/api/things/{name}", []),
}
HOST = "admin.test"
SERVER_KNOWS_PROXIES = os.environ.get("DIFFERENTIAL_PROXIES") == "server"
"""Whether the server has replaced its peer by the client, as uvicorn can."""
# Only these may be absent for the application and present for the limiter: the view may not look for them.
BODY = ("form:q", "json:q", "email")

_WITH_PORT = re.compile(r"([0-9.]+):[0-9]+|\[([0-9a-f:.]+)\](?::[0-9]+)?", re.IGNORECASE)
_seen: ContextVar[tuple[Mapping[str, Any], frozenset[str]] | None] = ContextVar("seen", default=None)
_totals: Counter[str] = Counter()


def settings(routes: bool = True) -> dict[str, Any]:
    """Return rules that read every feature and reject nothing."""
    rules = [{"name": "all", "key": [*KEY, *(["path:id"] if routes else [])], **LIMIT}]
    for name, (pattern, methods) in PATTERNS.items():
        match = {"path": pattern, **({"methods": methods} if methods else {})}
        rules.append({"name": name, "match": match, **LIMIT})
    rules.append({"name": "admin", "match": {"host": HOST}, **LIMIT})
    trusted = [] if SERVER_KNOWS_PROXIES else ["127.0.0.1"]
    header = os.environ.get("DIFFERENTIAL_HEADER", "x-forwarded-for")
    return {"rules": rules, "trusted_proxies": trusted, "forwarded_header": header, "headers": []}


def record() -> None:
    """Keep the features and rules of each decision in this process."""

    def keeping(decide: Callable[..., Any]) -> Any:
        def decide_and_keep(self: Limiter, plan: Any, features: Mapping[str, Any], *args: Any, **more: Any) -> Any:
            where = (rule.name for rule in plan.rules if rule.takes is None or rule.takes(features))
            _seen.set((features, frozenset(where)))
            return decide(self, plan, features, *args, **more)

        return decide_and_keep

    Limiter.decide = keeping(Limiter.decide)  # type: ignore[method-assign]
    Limiter.adecide = keeping(Limiter.adecide)  # type: ignore[method-assign]


def each_alone(app: Any) -> Any:
    """Return a WSGI application that forgets the request before, which ran in the same thread."""

    def start(environ: Any, start_response: Any) -> Any:
        _seen.set(None)
        return app(environ, start_response)

    return start


def each_alone_async(app: Any) -> Any:
    """Return an ASGI application that forgets the request before, whose context the server may reuse."""

    async def start(scope: Any, receive: Any, send: Any) -> None:
        _seen.set(None)
        await app(scope, receive, send)

    return start


def attempt(read: Callable[[], Any], errors: tuple[type[Exception], ...]) -> Any:
    """Return what a function reads, or ``UNREAD`` when it rejects the request."""
    try:
        return read()
    except errors:
        return UNREAD


def report(templates: Collection[str], method: str, readings: Mapping[str, Iterable[Any]]) -> dict[str, str]:
    """Return the headers of the response of a view.

    Args:
        templates: The route of the view as a pattern, or all routes that an application may have chosen.
        method: The method as the application reads it.
        readings: What the application reads of each feature, one way or several.
    """
    seen = _seen.get()
    _seen.set(None)
    if seen is None:
        return {"x-differs": quote("the limiter did not decide this request")}
    features, rules = seen
    found = [*_differences(features, readings), *_missing_rules(features, rules, templates, method, readings)]
    return {"x-differs": quote(" | ".join(found)[:3000])} if found else {}


def totals() -> str:
    return json.dumps(_totals)


def templates_of(paths: Iterable[str]) -> set[str]:
    """Return the patterns of the routes that paths lead to, where the application compares them itself."""
    patterns = set()
    for path in paths:
        if path == "/login":
            patterns.add(path)
        elif match := re.fullmatch("(/items|/api/things)/[^/]+", path):
            patterns.add({"/items": "/items/{id}", "/api/things": "/api/things/{name}"}[match[1]])
        elif path == "/files" or path.startswith("/files/"):
            patterns.add("/files/**")
    return patterns


def _differences(features: Mapping[str, Any], readings: Mapping[str, Iterable[Any]]) -> Iterable[str]:
    for name, values in readings.items():
        ours = features.get(name)
        shown = "invalid" if ours is INVALID else _canonical(name, ours)
        for theirs in values:
            if theirs is UNREAD:
                continue
            expected = _canonical(name, theirs)
            if ours is INVALID:
                _totals[f"{name} invalid"] += 1
            elif shown == expected:
                _totals[f"{name} {'equal' if shown else 'missing'}"] += 1
            elif not (expected == "" and name in BODY):
                yield f"{name}: the limiter read {shown!r}, the application {expected!r}"


def _missing_rules(
    features: Mapping[str, Any],
    rules: frozenset[str],
    templates: Collection[str],
    method: str,
    readings: Mapping[str, Iterable[Any]],
) -> Iterable[str]:
    expected = {
        name
        for name, (pattern, methods) in PATTERNS.items()
        if pattern in templates and (not methods or method.upper() in methods)
    }
    if any(theirs is not UNREAD and _canonical("host", theirs) == HOST for theirs in readings.get("host", ())):
        expected.add("admin")
    _totals["rules"] += 1
    _totals["rules expected"] += len(expected)
    if missing := expected - rules:
        yield f"rules: {sorted(missing)} did not apply to {features.get('path')!r} of the view {sorted(templates)}"


def _canonical(name: str, value: Any) -> str:
    """Return one text for all values that are one key by promise."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    if name == "path":
        text = re.sub("/+", "/", "/" + text)
        return text[:-1] if len(text) > 1 and text.endswith("/") else text
    if name == "method":
        return text.upper()
    if name == "host":
        return _host(text)
    if name == "email":
        return unicodedata.normalize("NFKC", text.replace("\ufeff", "")).strip().casefold()
    return _address(text) if name == "ip" else text


def _host(text: str) -> str:
    host = text.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".") if host.count(":") < 2 else f"[{host}]"


def _address(text: str) -> str:
    """Return the address, or "" for a text that is none: all these share one count."""
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] or match[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text if text.endswith("/64") else ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


record()
