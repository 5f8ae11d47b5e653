"""FILE or ``--app``: where the rules of a command come from. An application is imported, but not started."""

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any, Final

import click

from ..asgi import middleware as asgi
from ..asgi.request import ASGIRequest
from ..http.layers import layers_of
from ..keys.features import UNMATCHED
from ..rules.describe import Overview
from ..rules.marks import Destination
from ..rules.ruleset import RuleSet
from ..settings import load_settings
from ..stores import redacted_url
from ..wsgi import middleware as wsgi
from .output import FILE, Failure

_FRAMEWORK_COMMANDS: Final = {"flask": "flask --app {} ratelimit", "django": "manage.py ratelimit"}
_HAS_APP: Final = "ratelimit_mw.app"


class Source:
    """The rules of a settings file."""

    def __init__(self, file: Path) -> None:
        self.settings = load_settings(file)
        self.rules = RuleSet(self.settings.rules, lists=self.settings.lists, secret=self.settings.secret)
        self.overview = Overview(self.rules, self.settings.overrides)
        self.title = f"{self.settings.source}, store {redacted_url(self.settings.store)}"

    def rules_by_feature(self) -> dict[str, list[str]]:
        """Return the features that the rules need, each with the names of its rules."""
        users: dict[str, list[str]] = {}
        for rule in self.rules.rules:
            for name in dict.fromkeys((*rule.source.needs, *(["host"] if rule.source.matches.hosts else []))):
                users.setdefault(name, []).append(rule.name)
        return users

    def route(self, request: ASGIRequest) -> tuple[Destination, dict[str, Any]]:
        """Return where a request goes, and the path parameters."""
        return Destination(), {}


class Application(Source):
    """The rules of an application with the middleware of ASGI or WSGI, which is built and opens no connection."""

    def __init__(self, name: str) -> None:
        self._scope: dict[str, Any] = {}
        self.package = name.partition(":")[0].partition(".")[0]
        self.outside: list[Any] = []
        """The layers around the middleware."""
        self.middleware = middleware = self._find_middleware(name, _import(name))
        is_asgi = isinstance(middleware, asgi.RateLimitMiddleware)
        self._index = middleware.routes.index_of({"type": "http", **self._scope}) if is_asgi else None
        self.settings, self.rules = middleware.limiter.settings, middleware.limiter.rules
        routes = () if self._index is None else self._index.reader.routes()
        self.overview = Overview(self.rules, self.settings.overrides, routes)
        self.title = name

    def route(self, request: ASGIRequest) -> tuple[Destination, dict[str, Any]]:
        if self._index is None:
            return super().route(request)
        scope = {**request.native, **self._scope}
        to, params = self._index.describe(ASGIRequest(scope))
        if to.endpoint == UNMATCHED and request.method == "GET":  # it may be the handshake of a WebSocket
            to, params = self._index.describe(ASGIRequest({**scope, "type": "websocket"}))
        return to, params

    def _find_middleware(self, name: str, app: Any) -> Any:
        """Return the middleware around an application, or inside of it."""
        for layer in layers_of(app):
            if isinstance(layer, asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware):
                return layer
            self.outside.append(layer)
            if hasattr(layer, "build_middleware_stack"):
                self._scope = {"app": layer}
        for cls in type(app).__mro__:
            if command := _FRAMEWORK_COMMANDS.get(cls.__module__.partition(".")[0]):
                command = command.format(name.partition(":")[0])
                raise click.UsageError(f"{name}: use the command of its framework: {command}")
        raise Failure(f"{name} has no RateLimitMiddleware")


class SourceCommand(click.Command):
    """A command that takes either FILE or ``--app``. Its function gets a `Source`."""

    def __init__(self, *, params: list[click.Parameter], **kwargs: Any) -> None:
        file = click.Argument(["file"], type=FILE)
        text = "Use an application with RateLimitMiddleware in place of FILE, with its decorators and routes."
        app = click.Option(["--app"], metavar="MODULE:NAME", help=text)
        super().__init__(params=[file, app, *params], **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_APP] = any(arg.partition("=")[0] == "--app" for arg in args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [param for param in params if param.name != "file"] if ctx.meta.get(_HAS_APP) else params

    def invoke(self, ctx: click.Context) -> Any:
        file, app = ctx.params.pop("file", None), ctx.params.pop("app")
        ctx.params["source"] = Source(file) if app is None else Application(app)
        return super().invoke(ctx)


def _import(name: str) -> Any:
    """Import "shop:app" or "shop:create()", as a server does. Text printed by the module goes to stderr."""
    module, _, attributes = name.partition(":")
    if not (module and attributes) or module.startswith("."):
        raise click.UsageError(f"--app: expected MODULE:NAME, for example shop:app; got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    with contextlib.redirect_stdout(sys.stderr):
        try:
            value: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            raise click.UsageError(f"--app: no module {error.name!r} in the current folder or installed") from None
        for attribute in attributes.removesuffix("()").split("."):
            if not hasattr(value, attribute):
                raise click.UsageError(f"--app: module {module!r} has no {attributes!r}")
            value = getattr(value, attribute)
        return value() if attributes.endswith("()") else value
