"""Limits in an OpenAPI description: limited operations say that they may answer 429, and with which headers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

__all__ = ["OpenAPIWithLimits"]

Operation = tuple[str, str]
"""A route's whole template, and a method in capitals."""

_STATUS: Final = "429"
_MEANINGS: Final = {
    "x-ratelimit-limit": ("X-RateLimit-Limit", "The most that passes at once.", "integer"),
    "x-ratelimit-remaining": ("X-RateLimit-Remaining", "What is left.", "integer"),
    "x-ratelimit-reset": ("X-RateLimit-Reset", "When all of it is there again, in seconds.", "integer"),
    "ratelimit-policy": ("RateLimit-Policy", "The limits: quota (q) per window in seconds (w).", "string"),
    "ratelimit": ("RateLimit", "What remains (r), and after how many seconds more comes (t).", "string"),
}
_RETRY_AFTER: Final = ("Retry-After", "Seconds after which the same request is allowed.", "integer")
_PROBLEM: Final = {
    "application/problem+json": {
        "schema": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
                "violated-policies": {"type": "array", "items": {"type": "string"}},
            },
        }
    }
}


class OpenAPIWithLimits:
    """Stands in the place of a FastAPI application's ``openapi``: the same description, with the limits in it."""

    def __init__(self, openapi: Callable[[], dict[str, Any]], prefixes: Iterable[str]) -> None:
        self._openapi = openapi
        self._prefixes = tuple(prefixes)
        self._limited: Collection[Operation] = ()
        self._response: dict[str, Any] = {}

    @classmethod
    def describe(
        cls,
        app: Any,
        prefixes: Iterable[str],
        limited: Collection[Operation],
        headers: Collection[str],
        own_body: bool,
    ) -> None:
        """Have ``app`` tell which operations are limited. ``own_body``: whether the package writes rejections."""
        if not isinstance(app.openapi, cls):
            app.openapi = cls(app.openapi, prefixes)
        app.openapi._limited = limited
        app.openapi._response = _response(headers, own_body)

    def __call__(self) -> dict[str, Any]:
        schema = self._openapi()
        for path, item in schema.get("paths", {}).items():
            for method, operation in item.items():
                if any((prefix + path, method.upper()) in self._limited for prefix in self._prefixes):
                    operation.setdefault("responses", {}).setdefault(_STATUS, self._response)
        return schema


def _response(headers: Collection[str], own_body: bool) -> dict[str, Any]:
    told = [_MEANINGS[name] for name in _MEANINGS if name in headers]
    described = {
        title: {"description": meaning, "schema": {"type": kind}} for title, meaning, kind in (*told, _RETRY_AFTER)
    }
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": described}
    return response | {"content": _PROBLEM} if own_body else response
