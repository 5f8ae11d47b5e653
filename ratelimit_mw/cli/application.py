"""``--app``: imports an application as a server does, and finds its limiter and its routes.

The application is not started and gets no request. Its middleware is built, which opens no connection.
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
from ..keys.features import UNMATCHED
from ..limiter.limiter import Limiter
from ..rules.describe import Overview
from ..rules.marks import ViewMarks
from ..wsgi import middleware as wsgi
from .output import Failure, Misuse

_MAX_LAYERS: Final = 64
_FRAMEWORK_COMMANDS: Final = {"flask": "flask --app {} ratelimit", "django": "manage.py ratelimit"}
_HAS_APP: Final = "ratelimit_mw.app"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class ApplicationCommand(click.Command):
    """A command that takes either FILE or ``--app``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_APP] = any(arg.partition("=")[0] == "--app" for arg in args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [param for param in params if param.name != "file"] if ctx.meta.get(_HAS_APP) else params


def application_option(function: AnyFunction) -> AnyFunction:
    """Add ``--app``, which takes the place of FILE."""
    help_text = "Use an application with RateLimitMiddleware in place of FILE, with its decorators and routes."
    return click.option("--app", metavar="MODULE:NAME", callback=_open_application, help=help_text)(function)


class Application:
    """An application with the middleware of ASGI or WSGI. Raises `ConfigError` for invalid limits."""

    def __init__(self, name: str, app: Any) -> None:
        self.name = name
        self._index: RouteIndex | None = None
        self._scope: dict[str, Any] = {}
        middleware = self._find_middleware(app)
        if isinstance(middleware, asgi.RateLimitMiddleware):
            self._index = middleware.routes.index_of({"type": "http", **self._scope})
        self.limiter: Limiter = middleware.limiter
        routes = () if self._index is None else self._index.routes()
        self.overview = Overview(self.limiter.rules, self.limiter.settings.overrides, routes)

    def route(self, method: str, path: str, host: str) -> tuple[ViewMarks, dict[str, str]]:
        """Return the marks of the view that a request is routed to, and its features ``endpoint`` and ``path:...``."""
        if self._index is None:
            return ViewMarks(), {}
        headers = [(b"host", host.encode("latin-1", "replace"))]
        scope = {"method": method, "path": path, "query_string": b"", "headers": headers, **self._scope}
        endpoint, view, params = self._index.describe(ASGIRequest({**scope, "type": "http"}))
        if endpoint == UNMATCHED and method == "GET":  # it may be the handshake of a WebSocket
            endpoint, view, params = self._index.describe(ASGIRequest({**scope, "type": "websocket"}))
        return view, {"endpoint": endpoint, **{f"path:{name}": str(value) for name, value in params.items()}}

    def _find_middleware(self, app: Any) -> asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware:
        for layer in self._layers(app):
            if isinstance(layer, asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware):
                return layer
        for cls in type(app).__mro__:
            if command := _FRAMEWORK_COMMANDS.get(cls.__module__.partition(".")[0]):
                command = command.format(self.name.partition(":")[0])
                raise Misuse(f"{self.name}: use the command of its framework: {command}")
        raise Failure(f"{self.name} has no RateLimitMiddleware")

    def _layers(self, app: Any) -> Iterator[Any]:
        """Yield an application and everything that it wraps, the outermost layer first."""
        for _ in range(_MAX_LAYERS):
            yield app
            if hasattr(app, "build_middleware_stack"):  # Starlette builds its layers at the first request
                self._scope = {"app": app}
                app = app.build_middleware_stack()
            else:
                app = getattr(app, "app", None) or getattr(app, "wsgi_app", None)


def _open_application(_ctx: click.Context, _param: click.Parameter, name: str | None) -> Application | None:
    return None if name is None else Application(name, _import(name))


def _import(name: str) -> Any:
    """Import "shop:app" or "shop:create()", as a server does. Text printed by the module goes to stderr."""
    module, colon, attributes = name.partition(":")
    if not (module and colon and attributes) or module.startswith("."):
        raise click.BadParameter(f"expected MODULE:NAME, for example shop:app; got {name!r}")
    with contextlib.redirect_stdout(sys.stderr):
        value = _import_module(module)
        for attribute in attributes.removesuffix("()").split("."):
            if not hasattr(value, attribute):
                raise click.BadParameter(f"module {module!r} has no {attributes!r}")
            value = getattr(value, attribute)
        return value() if attributes.endswith("()") else value


def _import_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(f"no module {error.name!r} in the current folder or installed") from None
