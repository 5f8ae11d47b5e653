"""The layers of an ASGI application: which of them is the application or router of Starlette or FastAPI."""

from collections.abc import Iterator
from typing import Any, Final

_FRAMEWORKS: Final = ("starlette", "fastapi")
_MAX_DEPTH: Final = 32


def layers_of(app: Any) -> Iterator[Any]:
    """Yield an application, and those inside that middleware keeps as its ``app``."""
    for _ in range(_MAX_DEPTH):
        if app is None:
            return
        yield app
        app = getattr(app, "app", None)


def application_behind(app: Any) -> Any:
    """Return the Starlette application or router inside middleware; None where there is none."""
    of_frameworks = (layer for layer in layers_of(app) if is_of_framework(*type(layer).__mro__))
    return next((layer for layer in of_frameworks if isinstance(getattr(layer, "routes", None), list)), None)


def router_of(owner: Any) -> Any:
    """Return the router of an application; a router itself."""
    return getattr(owner, "router", owner)


def is_of_framework(*things: Any) -> bool:
    """Return whether one of some classes or functions is of Starlette or FastAPI."""
    return any(thing.__module__.partition(".")[0] in _FRAMEWORKS for thing in things)
