"""The rules of a Django project, as the commands of ``cli/`` show them."""

from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.utils import translation

from ..asgi.request import ASGIRequest
from ..cli.source import Routed, Source
from ..http.needs import requires_user
from ..settings.framework import SETTING
from .apps import check_project
from .limits import project_limits
from .middleware import RateLimitMiddleware, positions_of
from .request import SCOPE
from .routes import throttling

_NO_USER: Final = "ratelimit_mw.W003"


class DjangoSource(Source):
    """The rules of a project. Raises ``ConfigError`` for a mistake in a setting or a decorator."""

    def __init__(self, title: str) -> None:
        project = project_limits()
        self._routes = project.routes()  # they add rules to the limiter
        http_limiter = project.http_limiter
        limits = http_limiter.in_force
        super().__init__(title, limits.settings, http_limiter.limiter.rules, self._routes.all, http_limiter)
        self.is_limited = bool(
            self._routes.has_marks or getattr(settings, SETTING, None) or positions_of(RateLimitMiddleware)
        )

    def route(self, request: ASGIRequest) -> Routed:
        path = request.path
        with translation.override(translation.get_language_from_path(path) or settings.LANGUAGE_CODE):
            route, params = self._routes.resolve(path, translation.get_language())
        drf, to = throttling(), route.destination(request.method)
        scopes = drf.scopes_of_view(route.callback) if drf else []
        given = {"path": to.without_suffix(path, params), **({SCOPE: scopes[0]} if scopes else {})}
        return Routed(path, to, params, given)

    def problems(self) -> Iterator[str]:
        """Yield the messages of the system checks, all but those about limits that apply in another way."""
        yield from (message.msg for message in check_project() if _is_problem(message))

    def notes(self) -> Iterator[str]:
        """Yield the other messages of the system checks."""
        yield from (message.msg for message in check_project() if not _is_problem(message))


def open_source(_: object, title: str) -> Source | None:
    """Return the rules of the project of a handler; None when nothing is limited."""
    source = DjangoSource(title)
    return source if source.is_limited else None


def _is_problem(message: Any) -> bool:
    # Without a user, a key such as "user|ip" counts by IP address.
    rules = project_limits().http_limiter.in_force.rules.rules
    return message.id != _NO_USER or any(map(requires_user, rules))
