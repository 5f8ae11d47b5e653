"""The layers of an application: middleware that keeps the next layer as an attribute, and the application inside."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from .limiter import HttpLimiter

_MAX_LAYERS: Final = 64
_INSIDE: Final = ("middleware_stack", "app", "wsgi_app", "application", "__self__")
"""The names under which layers keep the next one. A bound method such as ``wsgi_app`` is one of its object."""
_EXTENSION: Final = "ratelimit_mw"
_OF_FRAMEWORKS: Final = re.compile(r"(?:starlette|fastapi)\.(?!middleware\.(?:authentication|base)\b)")
"""The modules of layers that run no code of an application."""


def layers_of(app: Any) -> Iterator[Any]:
    """Yield an application and the layers inside it, the outermost first, each once."""
    seen: list[Any] = []
    while app is not None and len(seen) < _MAX_LAYERS and all(app is not layer for layer in seen):
        yield app
        seen.append(app)
        if hasattr(app, "build_middleware_stack"):  # Starlette builds its layers at its first call
            if app.middleware_stack is None:
                app.middleware_stack = app.build_middleware_stack()
            app = app.middleware_stack
        else:
            app = next((inside for name in _INSIDE if (inside := getattr(app, name, None)) is not None), None)


def may_get_extension(app: Any) -> bool:
    """Return whether the application inside is one of Flask that has no extension yet."""
    tables = (getattr(layer, "extensions", None) for layer in layers_of(app))
    return any(isinstance(table, dict) and _EXTENSION not in table for table in tables)


def has_inner(limits: HttpLimiter, app: Any) -> bool:
    """Return whether a middleware has the same rules inside an application."""
    return any(is_inner(limits, layer) for layer in layers_of(app))


def is_inner(limits: HttpLimiter, layer: Any) -> bool:
    """Return whether a layer is another middleware with the same rules. ``app.wsgi_app`` leads back to its own."""
    found = (limits_of(layer) for limits_of in LIMITS_OF)
    others = (inner for inner in found if isinstance(inner, HttpLimiter) and inner is not limits)
    return any(limits.is_same(inner.limiter) for inner in others)


def is_of_framework(layer: object) -> bool:
    """Return whether a layer is of Starlette or FastAPI, and runs no code of an application."""
    return _OF_FRAMEWORKS.match(type(layer).__module__) is not None


def _limits_of(layer: Any) -> Any:
    """Return the limits of a middleware, or of the extension of Flask."""
    extensions = getattr(layer, "extensions", None)
    extension = extensions.get(_EXTENSION) if isinstance(extensions, dict) else None
    return getattr(extension or layer, "limits", None)


LIMITS_OF: Final[list[Callable[[Any], Any]]] = [_limits_of]
"""Functions that return the limits of a layer. The middleware of Django adds one for Django's handlers."""
