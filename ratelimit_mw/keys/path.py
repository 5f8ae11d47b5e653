"""The form in which paths are compared, and all readings of a path that readers may route to different places. Pure.

Some servers, frameworks and proxies drop control characters and invalid bytes, or end the path there. Some resolve dot
segments, or decode twice. Some take a backslash or an encoded slash for a slash.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from .features import INVALID

_MAX_READINGS: Final = 32
_MAX_CHARACTERS: Final = 16_384
"""The maximum number of characters of all readings together, so that a long path costs no more than a short one."""

_CONTROL: Final = r"\x00-\x1f\x7f-\x9f"
_INVALID: Final = r"\ufffd\ud800-\udfff"
_CONTROLS = re.compile(f"[{_CONTROL}]+")
_INVALIDS = re.compile(f"[{_INVALID}]+")
_BYTES = re.compile(r"[\udc80-\udcff]+")
"""Bytes of invalid UTF-8, which some readers take for Latin-1."""
_END = re.compile(f"[{_CONTROL}?#]")
_ESCAPES = re.compile("(?:%(?!2[fF])[0-9A-Fa-f]{2})+")
_TWICE: Final = "%(?:2[5EeFf]|5[Cc]|[01][0-9A-Fa-f]|7[Ff])"
"""A percent sign, dot, slash, backslash or control character that is still encoded."""
_AMBIGUOUS = re.compile(rf"[{_CONTROL}{_INVALID}?#\\]|{_TWICE}|(?:\A|/)\.\.?(?:/|\Z)")


def normalize_path(path: str) -> str:
    """Return the path in the form in which paths are compared.

    >>> normalize_path("//a//b/"), normalize_path("/"), normalize_path("a")
    ('/a/b', '/', '/a')
    """
    if path[:1] != "/":
        path = "/" + path
    if "//" in path:
        path = re.sub("/{2,}", "/", path)
    return path[:-1] if len(path) > 1 and path[-1] == "/" else path


def is_ambiguous(path: Any) -> bool:
    r"""Return whether readers may disagree about a path that was decoded once.

    >>> [is_ambiguous(path) for path in ("/caf\xe9/a.b/100%", "/login\n", "/a/../b", "/a%2Fb", "/a\\b")]
    [False, True, True, True, True]
    """
    return path is INVALID or _AMBIGUOUS.search(path) is not None


def path_feature(path: str) -> Any:
    """Return a path as the feature ``path``: normalized, or ``INVALID`` where readers may disagree."""
    return INVALID if is_ambiguous(path) else normalize_path(path)


def read_path(path: Any) -> set[str] | None:
    r"""Return every reading of a path, normalized; None where there are too many.

    >>> sorted(read_path("/Login//")), sorted(read_path("/a/..\\login"))
    (['/Login'], ['/a/../login', '/a/..\\login', '/login'])
    """
    if path is INVALID:
        return None
    readings = {path}
    waiting = [path] if _AMBIGUOUS.search(path) else []
    while waiting:
        reading = waiting.pop()
        for change in _CHANGES:
            changed = change(reading)
            if changed in readings:
                continue
            readings.add(changed)
            if len(readings) > _MAX_READINGS or len(readings) * len(path) > _MAX_CHARACTERS:
                return None
            if _AMBIGUOUS.search(changed):
                waiting.append(changed)
    return set(map(normalize_path, readings))


def _resolve(path: str) -> str:
    """Resolve the dot segments, as RFC 3986 does."""
    if "/." not in path and path[:1] != ".":
        return path
    resolved: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return "/".join(resolved)


def _decode(encoding: str, invalid: re.Match[str]) -> str:
    return invalid[0].encode(errors="surrogateescape").decode(encoding, "replace")


_CHANGES: Final[tuple[Callable[[str], str], ...]] = (
    lambda path: unquote(path, errors="surrogateescape"),
    lambda path: _ESCAPES.sub(lambda escapes: unquote(escapes[0]), path),
    partial(_CONTROLS.sub, ""),
    partial(_INVALIDS.sub, ""),
    partial(_BYTES.sub, partial(_decode, "utf-8")),
    partial(_BYTES.sub, partial(_decode, "latin-1")),
    lambda path: _END.split(path, maxsplit=1)[0],
    lambda path: path.replace("\\", "/"),
    _resolve,
    normalize_path,
)
