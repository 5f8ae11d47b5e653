"""``PageResponse``: a response as every framework can send it, with the headers that keep out other content."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageResponse(NamedTuple):
    """A response. The headers include ``Content-Type`` and ``Content-Length``."""

    status: int
    headers: dict[str, str]
    body: bytes


def build_response(
    status: int, content_type: str, body: bytes, cache: str = "no-store", **headers: str
) -> PageResponse:
    """Return a response with the headers of every response."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sizes = {"Content-Type": content_type, "Content-Length": str(len(body)), "Cache-Control": cache}
    return PageResponse(status, {**sizes, **named, **_SECURITY}, body)


def redirect_into(path: str, query: str) -> PageResponse:
    """Return a redirect to the mount with a trailing slash, which the relative URLs of the page need.

    The location is relative: a proxy may have its own prefix.

    >>> redirect_into("/a b/limits", "range=week").headers["Location"]
    './limits/?range=week'
    """
    location = f"./{quote(path.rpartition('/')[2])}/" + (f"?{quote(query, safe='=&%+')}" if query else "")
    return build_response(307, "text/plain", b"", Location=location)
