"""Takes over the limits of the routes that were read, checks the rules against them, and describes them in OpenAPI."""

from collections.abc import Callable, Collection
from typing import Any, Final

from ..errors import ConfigError, error_path
from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import check_parameters, check_routes
from ..keys.features import checked_name
from ..keys.parts import part_of
from ..rules.marks import ViewMarks
from ..rules.rule import Rule, with_defaults
from .dependants import DependencyLimit
from .rejections import ErrorHandlers, handle_rejections
from .route_reader import RouteReader
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


def adopt(limits: HttpLimiter, key: int, reader: RouteReader) -> None:
    """Add the limits of all routes, and describe them in OpenAPI."""
    views = [marks for route in reader.routes for marks in route.views.all()]
    views.append(ViewMarks(tuple(limit.mark for limit in reader.limits)))
    routes = list(reader.describe())

    def check(rules: HttpLimits) -> None:
        for limit in reader.limits:
            check_provided(limit, with_defaults(limit.mark.rule, rules.settings.defaults))
        check_parameters(routes, rules.rules)
        check_routes(routes, rules.rules)

    provided = {limit.mark: limit.provides for limit in reader.limits if limit.provides}
    limits.adopt(views, provided, check, key)
    for owner in reader.owners:
        handle_rejections(owner)
    for app in {id(owner): owner for owner in reader.owners if hasattr(owner, "openapi_schema")}.values():
        app.openapi = OpenAPIWithLimits(app, limits, [route for route in reader.routes if route.place.app is app])


def check_provided(limit: DependencyLimit, rule: Rule) -> None:
    """Raise ``ConfigError`` for a feature of a limit that its rule does not use."""
    try:
        for name in limit.provides:
            with error_path(f"features[{name!r}]"):
                if checked_name(name) not in [part_of(each).feature for each in rule.parts]:
                    needs = ", ".join(rule.parts)
                    raise ConfigError(f"the limit does not use it: its key, match, per and cost need {needs}")
    except ConfigError as error:
        raise ConfigError(error.message, error.path, limit.place) from None


class OpenAPIWithLimits:
    """Replaces ``openapi`` of a FastAPI application: the same description, with the response of limited operations."""

    def __init__(self, app: Any, limits: HttpLimiter, routes: Collection[AppRoute]) -> None:
        self.described: Callable[[], dict[str, Any]] = getattr(app.openapi, "described", app.openapi)
        self._app = app
        self._limits = limits
        self._routes = routes

    def __call__(self) -> dict[str, Any]:
        schema, limits = self.described(), self._limits.in_force
        handlers = ErrorHandlers.of(self._app)
        own_body = limits.reject is None and (handlers is None or handlers.find(_STATUS) is None)
        headers = [name.decode("ascii") for name in limits.writer.names]
        response = _describe_response(headers, own_body, limits.settings.reset)
        for route in self._routes:
            described = schema.get("paths", {}).get(getattr(route.entry, "path_format", ""), {})
            for method in route.methods or ():
                if method.lower() in described and _is_limited(limits, route, method):
                    described[method.lower()].setdefault("responses", {}).setdefault(str(_STATUS), response)
        return schema


def _is_limited(rules: HttpLimits, route: AppRoute, method: str) -> bool:
    """Return whether a rule that may reject applies to the route. Its template takes the place of a path."""
    match = route.match_for(method)
    plan = rules.rules.plan(method, route.endpoint, "", match)
    return any(not rule.shadow for rule in plan.rules) or bool(match.deferred)


def _describe_response(headers: Collection[str], own_body: bool, reset: str) -> dict[str, Any]:
    """Return the response to a rejection, with the package's own body or without a description of it."""
    described = {
        title: {"description": meaning, "schema": {"type": kind}}
        for title, (meaning, kind) in (_HEADERS | (_EPOCH if reset == "epoch" else {})).items()
        if title.lower() in (*headers, "retry-after")
    }
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": described}
    return response | {"content": _PROBLEM} if own_body else response
