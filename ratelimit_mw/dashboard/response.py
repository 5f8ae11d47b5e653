"""``PageResponse``: a response as every framework can send it, with the headers that keep out other content.

The files of the page have a digest in their URLs, so browsers may keep them.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from pathlib import Path
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
_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
_PREFIX: Final = "static/"


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


def asset_url(name: str) -> str:
    """Return the URL of a file, relative to the page."""
    return f"{_PREFIX}{name}?v={blake2b(_read(name), digest_size=6).hexdigest()}"


def find_asset(path: str) -> PageResponse | None:
    """Return the file of a path below the mount; None for any other path."""
    name = path.removeprefix(_PREFIX)
    if path == name or name not in _TYPES:
        return None
    return build_response(200, _TYPES[name], _read(name), "public, max-age=31536000, immutable")


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
