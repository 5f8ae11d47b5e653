"""The rules that a command shows: those of a settings file, or those of an application of any framework."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..asgi.request import ASGIRequest
from ..http.limits import HttpLimiter
from ..http.routes import Route
from ..operations.overview import Overview
from ..rules.marks import Destination
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores.url import redacted_url


class Routed(NamedTuple):
    """The destination of a request: its path as rules see it, its route, and the features that the route gives."""

    path: str
    to: Destination = Destination()
    params: Mapping[str, Any] = {}
    features: Mapping[str, Any] = {}


class Source:
    """Rules with their title. Without ``routes`` they are those of a settings file.

    ``http_limiter`` is what the middleware of the application built.
    """

    def __init__(
        self,
        title: str,
        settings: Settings,
        rules: RuleSet,
        routes: Iterable[Route] | None = None,
        http_limiter: HttpLimiter | None = None,
    ) -> None:
        self.title = title
        self.settings = settings
        self.rules = rules
        self.routes = None if routes is None else list(routes)
        """The routes of the application; None for a file."""
        self.overview = Overview(rules, settings.amendments, self.routes)
        self.http_limiter = http_limiter

    @classmethod
    def from_file(cls, file: Path) -> "Source":
        settings = load_settings(file)
        rules = RuleSet(settings.rules, lists=settings.lists, secret=settings.secret, priorities=settings.priorities)
        return cls(f"{settings.source}, store {redacted_url(settings.store)}", settings, rules)

    @property
    def running_settings(self) -> Settings:
        """The settings of the limiter in the application, which may have been built in code; else those of the file."""
        return self.http_limiter.limiter.settings if self.http_limiter else self.settings

    def rules_by_feature(self) -> dict[str, list[str]]:
        """Return the features that the rules need, each with the names of its rules."""
        users: dict[str, list[str]] = {}
        for rule in self.rules.rules:
            for name in dict.fromkeys((*rule.source.needs, *(["host"] if rule.source.matches.hosts else []))):
                users.setdefault(name, []).append(rule.name)
        return users

    def route(self, request: ASGIRequest) -> Routed:
        return Routed(request.sent_path)

    def problems(self) -> Iterator[str]:
        """Yield the mistakes of the application that only its framework shows."""
        yield from ()

    def notes(self) -> Iterator[str]:
        """Yield notes about the place of the limits in the application."""
        yield from ()


class MapSource(Source):
    """The rules of an application whose routes are a map of Werkzeug. ``notes`` yields its notes."""

    def __init__(self, title: str, views: Any, notes: Callable[[], Iterable[str]]) -> None:
        self._views, self._notes = views, notes
        routes, http_limiter = views.read(), views.http_limiter
        limits = http_limiter.in_force
        super().__init__(title, limits.settings, limits.rules, routes, http_limiter)

    def route(self, request: ASGIRequest) -> Routed:
        to, params = self._views.find(_environ_of(request, self._views.server_name))
        return Routed(request.sent_path, to, params)

    def notes(self) -> Iterator[str]:
        yield from self._notes()


def _environ_of(request: ASGIRequest, server_name: str | None) -> dict[str, Any]:
    """Return a request as the WSGI environ from which Werkzeug finds its route. Its default host is the server."""
    host = request.header("host") or server_name or "localhost"
    path = request.native["path"].encode().decode("latin-1")
    server = {"wsgi.url_scheme": "http", "SERVER_NAME": host, "SERVER_PORT": "80", "HTTP_HOST": host}
    return {**server, "REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
