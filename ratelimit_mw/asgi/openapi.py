"""Describes the response of limited operations in the OpenAPI document of FastAPI."""

from collections.abc import Callable, Collection
from typing import Any, Final

from ..http.limits import HttpLimiter, HttpLimits
from .rejections import handler_of
from .router import AppRoute

_STATUS: Final = 429
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


def describe_limits(app: Any, http_limiter: HttpLimiter, routes: Collection[AppRoute]) -> None:
    """Replace ``openapi`` of a FastAPI application: the same description, with the response of limited operations."""
    described: Callable[[], dict[str, Any]] = getattr(app.openapi, "described", app.openapi)

    def openapi() -> dict[str, Any]:
        schema, limits = described(), http_limiter.in_force
        has_problem = limits.reject is None and handler_of(app, _STATUS) is None
        response = _describe_response(limits.writer.text_names, has_problem, limits.settings.reset)
        for route in routes:
            operations = schema.get("paths", {}).get(getattr(route.entry, "path_format", ""), {})
            for method in route.methods or ():
                if method.lower() in operations and _is_limited(limits, route, method):
                    operations[method.lower()].setdefault("responses", {}).setdefault(str(_STATUS), response)
        return schema

    openapi.described = described  # type: ignore[attr-defined]
    app.openapi = openapi


def _is_limited(limits: HttpLimits, route: AppRoute, method: str) -> bool:
    """Return whether a rule that may reject applies to the route. Its template takes the place of a path."""
    match = route.match_for(method)
    plan = limits.rules.plan(method, route.endpoint, "", match)
    return any(not rule.shadow for rule in plan.rules) or bool(match.deferred)


def _describe_response(headers: Collection[str], has_problem: bool, reset: str) -> dict[str, Any]:
    """Return the response to a rejection, with the package's body or without a description of it."""
    described = {
        title: {"description": meaning, "schema": {"type": kind}}
        for title, (meaning, kind) in (_HEADERS | (_EPOCH if reset == "epoch" else {})).items()
        if title.lower() in (*headers, "retry-after")
    }
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": described}
    return response | {"content": _PROBLEM} if has_problem else response
