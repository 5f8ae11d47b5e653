"""The rules that a command shows: those of a settings file, or of an application, which is imported and not started."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
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
from ..rules.decorators import marks_made
from ..rules.marks import Mark
from ..rules.ruleset import RuleSet
from ..settings import Settings, SettingsFile, load_settings
from ..stores.url import redacted_url
from ..wsgi import middleware as wsgi
from .output import FILE, Failure

_DJANGO: Final = "ratelimit_mw.django.source"
"""The module that opens a project of Django. It is imported by name: it needs the framework."""
_EXTENSION: Final = "ratelimit_mw"
"""The name under which an application of Flask keeps the extension."""
_MAX_LAYERS: Final = 64
_INSIDE: Final = ("middleware_stack", "app", "wsgi_app", "application", "__self__")
"""The names under which layers keep the next one. A bound method such as ``wsgi_app`` is one of its object."""
_HAS_APP: Final = "ratelimit_mw.app"
_ABOUT_APP: Final = (
    "FILE contains only settings. With --app, the command imports your application and also knows the rules of its"
    " decorators."
)
Find = Callable[[ASGIRequest], Features | None]
"""Sets the destination and the parameters of a request. It may return features that only the framework gives."""


def request_of(method: str, path: str, host: str, sent: str = "", query: str = "") -> ASGIRequest:
    """Return a request for the path, which was ``sent`` in a form of its own."""
    headers = [(b"host", host.encode("latin-1", "replace"))] if host else []
    texts = {"raw_path": sent or quote(path), "query_string": query}
    sent_texts = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    return ASGIRequest({"type": "http", "method": method, "path": path, "headers": headers, **sent_texts})


@dataclass
class Source:
    """Rules with their title, and the parts of an application that a settings file lacks."""

    title: str
    settings: Settings
    rules: RuleSet
    http_limiter: HttpLimiter | None = None
    """Built by the middleware of the application."""
    routes: Sequence[Route] | None = None
    """The routes of the application; None for a file."""
    find: Find | None = None
    notes: Sequence[str] = ()
    """Notes about the place of the limits in the application."""
    problems: Sequence[str] = ()
    """The mistakes of the application that only its framework shows."""

    def __post_init__(self) -> None:
        self.overview = Overview(self.rules, self.settings.amendments, self.routes)

    @classmethod
    def from_settings(cls, source: SettingsFile) -> "Source":
        settings = load_settings(source)
        of_rules = settings.replace(enabled=True).of_rule_set  # a command shows what the rules do where they are on
        rules = RuleSet(settings.rules, **of_rules).without_amendments()
        return cls(f"{settings.source}, store {redacted_url(settings.store)}", settings, rules)

    @classmethod
    def from_limiter(
        cls,
        title: str,
        http_limiter: HttpLimiter,
        routes: Iterable[Route] = (),
        find: Find | None = None,
        notes: Iterable[str] = (),
        problems: Iterable[str] = (),
    ) -> "Source":
        """Return the source of an application, from what its middleware has built."""
        limits = http_limiter.in_force
        return cls(title, limits.settings, limits.rules, http_limiter, [*routes], find, [*notes], [*problems])

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

    def route(self, request: ASGIRequest) -> dict[str, Any]:
        """Set where a request goes. Return the features that its route gives."""
        given = dict(self.find(request) or {}) if self.find else {}
        to = request.to
        for name, value in request.path_params.items():
            given[f"path:{name}"] = value if value is INVALID else str(value)
        return given if to.endpoint is None else {**given, "endpoint": to.endpoint, "view": to.function}


def _source_of_map(title: str, routes: Any, notes: Iterable[str]) -> Source:
    """Return the rules of an application whose routes are a map of Werkzeug."""

    def find(request: ASGIRequest) -> None:
        # The default host is the server.
        host = request.header("host") or routes.server_name or "localhost"
        path = request.native["path"].encode().decode("latin-1")
        server = {"wsgi.url_scheme": "http", "SERVER_NAME": host, "SERVER_PORT": "80", "HTTP_HOST": host}
        sent = {"REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        request.to, request.path_params = routes.find({**server, **sent})

    return Source.from_limiter(title, routes.http_limiter, routes.adopt(), find, notes)


def _source_of_asgi(title: str, middleware: asgi.RateLimitMiddleware, scope: dict[str, Any]) -> Source:
    """Return the rules of a middleware, which is built and opens no connection."""
    index = middleware.routes.index_of({"type": "http", **scope})

    def find(request: ASGIRequest) -> None:
        request.native.update(scope)
        middleware.routes.match(request)
        if request.to.endpoint == UNMATCHED and request.method == "GET":  # it may be the handshake of a WebSocket
            request.native["type"] = "websocket"
            middleware.routes.match(request)

    return Source.from_limiter(title, middleware.http_limiter, () if index is None else index.describe(), find)


def open_application(name: str) -> Source:
    """Import an application. Return its rules: of the first middleware that knows the user, or of its framework."""
    scope: dict[str, Any] = {}
    others = {*marks_made}
    with contextlib.redirect_stdout(sys.stderr):  # which may print
        for layer in _layers_inside(_import(name)):
            if source := _source_of(layer, name, scope):
                source.notes = [*_unrouted_limits(source, others), *source.notes]
                return source
            if hasattr(layer, "build_middleware_stack"):
                scope.setdefault("app", layer)
    raise Failure(
        f"{name} has no RateLimitMiddleware, and no RateLimiter of Flask. Add it, or name the application that has it."
        f" If {name} is a function that returns the application, write {name}()"
    )


def _unrouted_limits(source: Source, others: set[Mark]) -> Iterator[str]:
    """Name the decorators whose limit is on no route: another decorator may register the function inside."""
    routed = {id(mark.rule) for mark in source.rules.marks}
    for mark in sorted({*marks_made} - others, key=attrgetter("order")):
        if id(mark.rule) not in routed:
            yield f"{mark.place or mark.source}: the limit on {mark.view} applies to no route of this application"


def _layers_inside(app: Any) -> Iterator[Any]:
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


def _source_of(layer: Any, name: str, scope: dict[str, Any]) -> Source | None:
    """Return the rules of a layer; None for a layer that limits nothing, or does not know the user."""
    if isinstance(layer, asgi.RateLimitMiddleware):
        return None if layer.before_user else _source_of_asgi(name, layer, scope)
    if isinstance(layer, wsgi.RateLimitMiddleware):
        if layer.before_user:
            return None
        notes = warnings_of_user(layer.http_limiter, wsgi.NO_REMOTE_USER)
        if layer.routes is None:
            return Source.from_limiter(name, layer.http_limiter, notes=notes)
        return _source_of_map(name, layer.routes, notes)
    frameworks = {cls.__module__.partition(".")[0] for cls in type(layer).__mro__}
    if "flask" in frameworks and (hooks := getattr(layer, "extensions", {}).get(_EXTENSION)):
        return _source_of_map(name, hooks.routes, hooks.notes())
    return importlib.import_module(_DJANGO).open_source(name) if "django" in frameworks else None


def _import(name: str) -> Any:
    """Import "shop:app" or "shop:create()", as a server does."""
    module, _, attributes = name.partition(":")
    if not (module and attributes) or module.startswith("."):
        raise click.UsageError(f"--app: expected MODULE:APP, for example shop:app; got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
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
        ctx.params["source"] = Source.from_settings(file) if app is None else open_application(app)
        return super().invoke(ctx)
