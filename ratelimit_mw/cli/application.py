"""An application as commands see it: imported as servers do, with the limiter and the routes that it would have.

Nothing of it runs: it is not started, and no request is made. Its middleware is built, which opens no connection.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ..asgi import middleware as asgi
from ..asgi.request import ASGIRequest
from ..asgi.routes.index import RouteIndex
from ..asgi.routes.listing import going, routes_of
from ..keys.features import UNMATCHED
from ..limiter.limiter import Limiter
from ..rules.marks import ViewMarks
from ..rules.overview import Overview
from ..wsgi import middleware as wsgi
from .output import Failure, Misuse

__all__ = ["Application", "OfApplication", "application_option"]

_DEEPEST: Final = 64
_AT_HOME: Final = {"flask": "flask --app {} ratelimit", "django": "manage.py ratelimit"}
_APP: Final = "ratelimit_mw.app"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class OfApplication(click.Command):
    """A command that takes either FILE or ``--app``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_APP] = any(arg.partition("=")[0] == "--app" for arg in args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [param for param in params if param.name != "file"] if ctx.meta.get(_APP) else params


def application_option(function: AnyFunction) -> AnyFunction:
    """``--app``: in place of FILE."""
    said = "In place of FILE: an application with RateLimitMiddleware, its decorators and routes included."
    return click.option("--app", metavar="MODULE:NAME", callback=_opened, help=said)(function)


class Application:
    """One with the middleware of ASGI or WSGI. ``ConfigError`` for limits that cannot work."""

    def __init__(self, name: str, app: Any) -> None:
        self.name = name
        self._index: RouteIndex | None = None
        self._scope: dict[str, Any] = {}
        middleware = self._middleware_of(app)
        if isinstance(middleware, asgi.RateLimitMiddleware):
            self._index = middleware._index_of({"type": "http", **self._scope})
        self.limiter: Limiter = middleware.limiter
        routes = () if self._index is None else routes_of(self._index)
        self.overview = Overview(self.limiter.rules, self.limiter.settings.overrides, routes)

    def going(self, method: str, path: str, host: str) -> tuple[ViewMarks, dict[str, str]]:
        """What is marked where a request goes, and what is known of it there: ``endpoint``, ``path:id``."""
        if self._index is None:
            return ViewMarks(), {}
        headers = [(b"host", host.encode("latin-1", "replace"))]
        asked = {"method": method, "path": path, "query_string": b"", "headers": headers, **self._scope}
        endpoint, view, params = going(self._index, ASGIRequest({**asked, "type": "http"}))
        if endpoint == UNMATCHED and method == "GET":  # it may be the handshake of a WebSocket
            endpoint, view, params = going(self._index, ASGIRequest({**asked, "type": "websocket"}))
        return view, {"endpoint": endpoint, **{f"path:{name}": str(value) for name, value in params.items()}}

    def _middleware_of(self, app: Any) -> asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware:
        for layer in self._layers(app):
            if isinstance(layer, asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware):
                return layer
        for kind in type(app).__mro__:
            if command := _AT_HOME.get(kind.__module__.partition(".")[0]):
                own = command.format(self.name.partition(":")[0])
                raise Misuse(f"{self.name} is looked at by a command of its own framework: {own}")
        raise Failure(f"{self.name} has no RateLimitMiddleware")

    def _layers(self, app: Any) -> Iterator[Any]:
        """An application and what it is wrapped around, the outermost first; of Starlette's, its whole stack."""
        for _ in range(_DEEPEST):
            yield app
            if hasattr(app, "build_middleware_stack"):
                self._scope = {"app": app}
                app = app.build_middleware_stack()
            else:
                app = getattr(app, "app", None) or getattr(app, "wsgi_app", None)


def _opened(_ctx: click.Context, _param: click.Parameter, name: str | None) -> Application | None:
    if name is None:
        return None
    return Application(name, _imported(name))


def _imported(name: str) -> Any:
    """What a server would import by this name: "shop:app", or "shop:create()". What it prints then goes to stderr."""
    module, colon, attributes = name.partition(":")
    if not (module and colon and attributes) or module.startswith("."):
        raise click.BadParameter(f"expected MODULE:NAME, such as shop:app; got {name!r}")
    with contextlib.redirect_stdout(sys.stderr):
        found = _module(module)
        for attribute in attributes.removesuffix("()").split("."):
            if not hasattr(found, attribute):
                raise click.BadParameter(f"{module} has no {attributes!r}")
            found = getattr(found, attribute)
        return found() if attributes.endswith("()") else found


def _module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(f"there is no module {error.name!r} here") from None
