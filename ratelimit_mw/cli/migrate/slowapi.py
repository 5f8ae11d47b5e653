"""Read the limiter of slowapi, and the views of an application of Starlette or FastAPI."""

from collections.abc import Iterator
from typing import Any

from ..output import Failure
from .findings import Findings
from .limiters import add_limiter, check_names, decorators_of, distinct, exempt_from
from .names import attribute_of, name_of_function, place_of, unwrapped


def read(app: Any, name: str) -> Findings:
    """Return the parts of an application of Starlette or FastAPI."""
    limiter = getattr(getattr(app, "state", None), "limiter", None)
    if limiter is None or not hasattr(limiter, "_route_limits"):
        raise Failure(
            f"{name}: no Limiter of slowapi at app.state.limiter. Name the application that has it. If the start sets"
            " it, name a function that does the same and returns the application: shop:create()"
        )
    findings = Findings(name, "{}(request)")
    style = "endpoint" if limiter._key_style == "endpoint" else "path"
    findings.add_store(limiter._storage_uri or limiter.get_app_config("RATELIMIT_STORAGE_URL", None))
    add_limiter(findings, limiter, limiter._default_limits, limiter._application_limits, style)
    classes = [base for each in app.user_middleware for base in getattr(each.cls, "__mro__", ())]
    has_middleware = any(base.__module__.startswith("slowapi.") for base in classes)
    if findings.rules and not has_middleware:
        findings.note(
            "default_limits and application_limits: without SlowAPIMiddleware, slowapi applies them to no view, except"
            " the default limits to views with override_defaults=False. Here, they apply to all views"
        )
    _add_views(findings, limiter, list(_endpoints(app)), ["path"] if style == "path" else [], has_middleware)
    package = "fastapi" if any(cls.__module__.startswith("fastapi.") for cls in type(app).__mro__) else "starlette"
    findings.code = [
        f"from ratelimit_mw.{package} import RateLimitMiddleware, exempt, limit",
        "app.add_middleware(RateLimitMiddleware, {})",
    ]
    findings.note("the views need no request and no response for the limits. Remove those that they do not use")
    return findings


def _add_views(findings: Findings, limiter: Any, endpoints: list[Any], key: list[str], has_middleware: bool) -> None:
    """Add the decorators of each function. slowapi knows functions by their modules and names."""
    limited = limiter._Limiter__marked_for_limiting
    static, dynamic = limiter._route_limits, limiter._dynamic_route_limits
    routed = {id(own) for endpoint in endpoints for own in (unwrapped(endpoint), *_methods_of(endpoint))}
    for name in dict.fromkeys([*sorted(limiter._exempt_routes), *limited]):
        is_exempt = name in limiter._exempt_routes
        module, _, last = name.rpartition(".")
        same = [each for each in endpoints if f"{each.__module__}.{getattr(each, '__name__', '')}" == name]
        functions = distinct([*limited.get(name, ()), *same]) or [attribute_of(module, last)]
        limits = [] if is_exempt else [*static.get(name, ()), *dynamic.get(name, ())]
        # The middleware applies the default limits to a view all of whose limits are functions.
        replacing = static.get(name, ()) if has_middleware else limits
        overrides = any(limit.override_defaults for limit in replacing)
        for function in functions:
            where = place_of(function or name)
            decorators = ["@exempt"] if is_exempt else exempt_from(findings, ["default"] if overrides else [])
            decorators += decorators_of(findings, limits, *key, where=where, unrouted=id(function) not in routed)
            findings.add_view(name_of_function(function or name), where, decorators)
        check_names(findings, name, functions, place_of(functions[0] or name))


def _endpoints(app: Any) -> Iterator[Any]:
    """Yield the functions and classes of all routes, with those of included routers and mounted applications."""
    for route in getattr(app, "routes", None) or ():
        if (endpoint := getattr(route, "endpoint", None)) is not None:
            yield endpoint
        yield from _endpoints(getattr(route, "original_router", None) or getattr(route, "app", None))


def _methods_of(endpoint: Any) -> Iterator[Any]:
    for cls in getattr(endpoint, "__mro__", ()):
        yield from (unwrapped(value) for value in vars(cls).values() if callable(value))
