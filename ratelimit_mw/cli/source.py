"""The rules that a command shows: those of a settings file, or of an application, which is imported and not started."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import click

from ..asgi import middleware as asgi
from ..asgi.request import ASGIRequest
from ..http.limits import HttpLimiter
from ..http.routes import Route
from ..http.warnings import warnings_of_user
from ..keys import parts
from ..keys.features import INVALID, UNMATCHED, Features
from ..operations.overview import Overview
from ..rules.marks import Destination
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores.url import redacted_url
from ..wsgi import middleware as wsgi
from .output import FILE, Failure

_FRAMEWORKS: Final = {"flask": "ratelimit_mw.flask.source", "django": "ratelimit_mw.django.source"}
"""The module of each framework that opens its applications. It is imported by name: it needs the framework."""
_MAX_LAYERS: Final = 64
_INSIDE: Final = ("middleware_stack", "app", "wsgi_app", "application", "__self__")
"""The names under which layers keep the next one. A bound method such as ``wsgi_app`` is one of its object."""
_HAS_APP: Final = "ratelimit_mw.app"
_ABOUT_APP: Final = (
    "FILE contains only settings. With --app, the command imports your application and also knows the rules of its"
    " decorators."
)


class Routed(NamedTuple):
    """The destination of a request: its path as rules see it, its route, and the features that the route gives."""

    path: str
    to: Destination = Destination()
    params: Mapping[str, Any] = {}
    features: Mapping[str, Any] = {}

    def as_features(self) -> dict[str, Any]:
        """Return the parameters, the endpoint and the view as features of the request."""
        given = {f"path:{name}": value if value is INVALID else str(value) for name, value in self.params.items()}
        return given if self.to.endpoint is None else {**given, "endpoint": self.to.endpoint, "view": self.to.function}


def request_of(method: str, path: str, host: str, sent: str = "", query: str = "") -> ASGIRequest:
    """Return a request for the path, which was ``sent`` in a form of its own."""
    headers = [(b"host", host.encode("latin-1", "replace"))] if host else []
    texts = {"raw_path": sent or quote(path), "query_string": query}
    sent_texts = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    return ASGIRequest({"type": "http", "method": method, "path": path, "headers": headers, **sent_texts})


def _path_only(request: ASGIRequest) -> Routed:
    return Routed(request.sent_path)


@dataclass
class Source:
    """Rules with their title, and the parts of an application that a settings file lacks."""

    title: str
    settings: Settings
    rules: RuleSet
    routes: Sequence[Route] | None = None
    """The routes of the application; None for a file."""
    http_limiter: HttpLimiter | None = None
    """Built by the middleware of the application."""
    route: Callable[[ASGIRequest], Routed] = _path_only
    """Returns where a request goes."""
    notes: Iterable[str] = ()
    """Notes about the place of the limits in the application."""
    problems: Iterable[str] = ()
    """The mistakes of the application that only its framework shows."""

    def __post_init__(self) -> None:
        self.overview = Overview(self.rules, self.settings.amendments, self.routes)

    @classmethod
    def from_file(cls, file: Path) -> "Source":
        settings = load_settings(file)
        rules = RuleSet(settings.rules, lists=settings.lists, secret=settings.secret, priorities=settings.priorities)
        return cls(f"{settings.source}, store {redacted_url(settings.store)}", settings, rules)

    @classmethod
    def from_limiter(
        cls,
        title: str,
        http_limiter: HttpLimiter,
        routes: Iterable[Route],
        route: Callable[[ASGIRequest], Routed] = _path_only,
        notes: Iterable[str] = (),
        problems: Iterable[str] = (),
    ) -> "Source":
        """Return the source of an application, from what its middleware has built."""
        limits = http_limiter.in_force
        return cls(title, limits.settings, limits.rules, list(routes), http_limiter, route, list(notes), list(problems))

    @property
    def running_settings(self) -> Settings:
        """The settings of the limiter in the application, which may have been built in code; else those of the file."""
        return self.http_limiter.limiter.settings if self.http_limiter else self.settings

    def rules_by_feature(self) -> dict[str, list[str]]:
        """Return the features that the rules need, each with the names of its rules. A path may give some of them."""
        users: dict[str, list[str]] = {}
        for rule in self.rules.rules:
            for name in dict.fromkeys((*rule.source.needs, *(["host"] if rule.source.matches.hosts else []))):
                if name not in rule.source.captures.names:
                    users.setdefault(name, []).append(rule.name)
        return users

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them, such as an IPv6 address as its network."""
        if self.http_limiter:
            return self.http_limiter.as_counted(features)
        return parts.as_counted(features, self.settings.ipv6_prefix)


def map_source(title: str, views: Any, notes: Iterable[str]) -> Source:
    """Return the rules of an application whose routes are a map of Werkzeug."""

    def route(request: ASGIRequest) -> Routed:
        # The default host is the server.
        host = request.header("host") or views.server_name or "localhost"
        path = request.native["path"].encode().decode("latin-1")
        server = {"wsgi.url_scheme": "http", "SERVER_NAME": host, "SERVER_PORT": "80", "HTTP_HOST": host}
        sent = {"REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        return Routed(request.sent_path, *views.find({**server, **sent}))

    return Source.from_limiter(title, views.http_limiter, views.read(), route, notes)


def _middleware_source(title: str, middleware: Any, outside: list[Any]) -> Source:
    """Return the rules of the middleware of ASGI or WSGI, which is built and opens no connection."""
    if isinstance(middleware, wsgi.RateLimitMiddleware):
        notes = warnings_of_user(middleware.http_limiter, wsgi.NO_REMOTE_USER)
        if middleware.routes is not None:
            return map_source(title, middleware.routes, notes)
        return Source.from_limiter(title, middleware.http_limiter, (), notes=notes)
    app = next((layer for layer in outside if hasattr(layer, "build_middleware_stack")), None)
    scope = {"app": app} if app is not None else {}
    index = middleware.routes.index_of({"type": "http", **scope})
    if index is None:
        return Source.from_limiter(title, middleware.http_limiter, ())

    def route(request: ASGIRequest) -> Routed:
        request = ASGIRequest({**request.native, **scope})
        to = index.find(request)
        if to.endpoint == UNMATCHED and request.method == "GET":  # it may be the handshake of a WebSocket
            request = ASGIRequest({**request.native, "type": "websocket"})
            to = index.find(request)
        return Routed(request.sent_path, to, index.params(request))

    return Source.from_limiter(title, middleware.http_limiter, index.describe(), route)


def open_application(name: str) -> Source:
    """Import an application. Return its rules: of the first middleware that knows the user, or of its framework."""
    outside: list[Any] = []
    app = _import(name)
    with contextlib.redirect_stdout(sys.stderr):
        for layer in _layers_of(app):
            is_middleware = isinstance(layer, asgi.RateLimitMiddleware | wsgi.RateLimitMiddleware)
            if is_middleware and not layer.before_user:
                return _middleware_source(name, layer, outside)
            if source := _source_of_framework(layer, name):
                return source
            outside.append(layer)
    raise Failure(
        f"{name} has no RateLimitMiddleware, and no RateLimiter of Flask. Add it, or name the application that has it."
        f" If {name} is a function that returns the application, write {name}()"
    )


def _layers_of(app: Any) -> Iterator[Any]:
    """Yield an application and the layers inside it, the outermost first. They may lead back to one another."""
    for _ in range(_MAX_LAYERS):
        if app is None:
            return
        yield app
        if hasattr(app, "build_middleware_stack"):  # Starlette builds its layers at its first call
            if app.middleware_stack is None:
                app.middleware_stack = app.build_middleware_stack()
            app = app.middleware_stack
        else:
            app = next((inside for name in _INSIDE if (inside := getattr(app, name, None)) is not None), None)


def _source_of_framework(app: object, name: str) -> Source | None:
    for cls in type(app).__mro__:
        if module := _FRAMEWORKS.get(cls.__module__.partition(".")[0]):
            source: Source | None = importlib.import_module(module).open_source(app, name)
            return source
    return None


def _import(name: str) -> Any:
    """Import "shop:app" or "shop:create()", as a server does. Text printed by the module goes to stderr."""
    module, _, attributes = name.partition(":")
    if not (module and attributes) or module.startswith("."):
        raise click.UsageError(f"--app: expected MODULE:APP, for example shop:app; got {name!r}")
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


class SourceCommand(click.Command):
    """A command that takes either FILE or ``--app``. Its function gets a `Source`."""

    def __init__(self, *, params: list[click.Parameter], **kwargs: Any) -> None:
        file = click.Argument(["file"], type=FILE)
        text = "Use an application instead of FILE, with its decorators and routes."
        app = click.Option(["--app"], metavar="MODULE:APP", help=text)
        super().__init__(params=[file, app, *params], **kwargs)
        self.help = f"{inspect.cleandoc(self.help or '')}\n\n{_ABOUT_APP}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_APP] = any(arg.partition("=")[0] == "--app" for arg in args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [param for param in params if param.name != "file"] if ctx.meta.get(_HAS_APP) else params

    def invoke(self, ctx: click.Context) -> Any:
        file, app = ctx.params.pop("file", None), ctx.params.pop("app", None)
        ctx.params["source"] = Source.from_file(file) if app is None else open_application(app)
        return super().invoke(ctx)
