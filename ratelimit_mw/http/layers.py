"""The layers of an application: middleware that keeps the next layer as an attribute, and the application inside."""

import re
from collections.abc import Iterator
from typing import Any, Final

_MAX_LAYERS: Final = 64
_INSIDE: Final = ("middleware_stack", "app", "wsgi_app", "application", "__self__")
"""The names under which layers keep the next one. A bound method such as ``wsgi_app`` is one of its object."""
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


def is_of_framework(layer: object) -> bool:
    """Return whether a layer is of Starlette or FastAPI, and runs no code of an application."""
    return _OF_FRAMEWORKS.match(type(layer).__module__) is not None
