"""The answer to a refused request: 429, in the form that its ``Accept`` asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Final

from ..decision import Verdict

__all__ = ["Rejection", "rejection"]

_TYPE: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
_TITLE: Final = "Too Many Requests"
_LONGEST_ACCEPT: Final = 512


@dataclass(frozen=True)
class Rejection:
    """A whole response. Header names are lower case; the rate limit headers are added to them."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def reason(self) -> str:
        return {429: _TITLE, 503: "Service Unavailable", 403: "Forbidden"}.get(self.status, "Refused")


def rejection(verdict: Verdict, accept: str, retry_after: str | None) -> Rejection:
    """The 429 for a verdict. ``retry_after`` is the value of the header that will stand beside it."""
    media, write = _FORMS[_preferred(accept) if len(accept) <= _LONGEST_ACCEPT else 0]
    detail = (
        f"Retry after {retry_after} seconds."
        if retry_after
        else "This request can never be allowed: it costs too much."
    )
    body = write(detail, [decision.bound.policy for decision in verdict.refusing])
    headers = [("content-type", media), ("content-length", str(len(body))), ("cache-control", "no-store")]
    return Rejection(429, headers, body)


def _problem(detail: str, violated: list[str]) -> bytes:
    problem = {"type": _TYPE, "title": _TITLE, "status": 429, "detail": detail, "violated-policies": violated}
    return json.dumps(problem).encode()


def _html(detail: str, _violated: list[str]) -> bytes:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title></head>'
        f"<body><h1>{_TITLE}</h1><p>{escape(detail)}</p></body></html>"
    ).encode()


def _text(detail: str, _violated: list[str]) -> bytes:
    return f"{_TITLE}\n{detail}\n".encode()


_FORMS: Final[list[tuple[str, Callable[[str, list[str]], bytes]]]] = [
    ("application/problem+json", _problem),
    ("text/html; charset=utf-8", _html),
    ("text/plain; charset=utf-8", _text),
]
# What an Accept may name for each form, the most telling first; all else equal, the first form wins.
_RANGES: Final = (
    ("application/problem+json", "application/json", "application/*", "*/*"),
    ("text/html", "application/xhtml+xml", "text/*", "*/*"),
    ("text/plain", "text/*", "*/*"),
)


@lru_cache(1024)
def _preferred(accept: str) -> int:
    """The number of the form that an ``Accept`` header likes best (RFC 9110, 12.5.1)."""
    wanted = dict(_media_range(part) for part in accept.split(",") if part.strip()) or {"*/*": 1.0}
    quality = [next((wanted[name] for name in names if name in wanted), 0.0) for names in _RANGES]
    return quality.index(max(quality))


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return name, min(1.0, max(0.0, float(quality)))
    except ValueError:
        return name, 0.0
