"""Limits in an OpenAPI description: limited operations get the response 429 and its headers."""

from collections.abc import Callable, Collection
from typing import Any, Final

Operation = tuple[str, str]
"""The whole template of a route, and a method in upper case."""

_STATUS: Final = "429"
_HEADERS: Final = {
    "X-RateLimit-Limit": ("The maximum number of requests that the limit allows at once.", "integer"),
    "X-RateLimit-Remaining": ("The requests that remain.", "integer"),
    "X-RateLimit-Reset": ("Seconds until the limit is fully reset.", "integer"),
    "RateLimit-Policy": ("The limits: quota (q) per window in seconds (w).", "string"),
    "RateLimit": ("The limits that reject: the remaining quota (r) and the seconds to wait (t).", "string"),
    "Retry-After": ("Seconds until the same request is allowed.", "integer"),
}
_EPOCH: Final = {"X-RateLimit-Reset": ("When the limit is fully reset, in seconds since 1970.", "integer")}
_STRING: Final = {"type": "string"}
_MEMBERS: Final = dict.fromkeys(("type", "title", "detail"), _STRING) | {
    "status": {"type": "integer"},
    "retry-after": {"type": "integer"},
    "violated-policies": {"type": "array", "items": _STRING},
}
_PROBLEM: Final = {"application/problem+json": {"schema": {"type": "object", "properties": _MEMBERS}}}


class OpenAPIWithLimits:
    """Replaces ``openapi`` of a FastAPI application: the same description, with the response of limited operations."""

    def __init__(
        self, app: Any, prefixes: Collection[str], describe: Callable[[], tuple[Collection[Operation], dict[str, Any]]]
    ) -> None:
        before = app.openapi
        self._openapi: Callable[[], dict[str, Any]] = before._openapi if isinstance(before, type(self)) else before
        self._prefixes = prefixes
        self._describe = describe

    def __call__(self) -> dict[str, Any]:
        schema, (limited, response) = self._openapi(), self._describe()
        for path, item in schema.get("paths", {}).items():
            for method, operation in item.items():
                if any((prefix + path, method.upper()) in limited for prefix in self._prefixes):
                    operation.setdefault("responses", {}).setdefault(_STATUS, response)
        return schema


def describe_response(headers: Collection[str], own_body: bool, reset: str) -> dict[str, Any]:
    """Return the response to a rejection, with the package's own body or without a description of it."""
    described = {
        title: {"description": meaning, "schema": {"type": kind}}
        for title, (meaning, kind) in (_HEADERS | (_EPOCH if reset == "epoch" else {})).items()
        if title.lower() in (*headers, "retry-after")
    }
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": described}
    return response | {"content": _PROBLEM} if own_body else response
