"""The files of the page: style sheets, scripts and the icon. Their URLs have a digest, so browsers may keep them."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from .response import PageResponse, build_response

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
PREFIX: Final = "static/"


def asset_url(name: str) -> str:
    """Return the URL of a file, relative to the page."""
    return f"{PREFIX}{name}?v={blake2b(_read(name), digest_size=6).hexdigest()}"


def find_asset(path: str) -> PageResponse | None:
    """Return the file of a path below the mount; None for any other path."""
    name = path.removeprefix(PREFIX)
    if path == name or name not in _TYPES:
        return None
    return build_response(200, _TYPES[name], _read(name), "public, max-age=31536000, immutable")


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
