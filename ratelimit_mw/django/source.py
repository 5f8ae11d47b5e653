"""The rules of a Django project, as the commands of ``cli/`` show them."""

from collections.abc import Iterator

from django.conf import settings
from django.core import checks
from django.utils import translation

from ..asgi.request import ASGIRequest
from ..cli.source import Routed, Source
from ..settings.framework import SETTING
from .checks import check_project
from .limits import project_limits
from .middleware import RateLimitMiddleware, positions_of
from .request import SCOPE
from .routes import scopes_of


class DjangoSource(Source):
    """The rules of a project. Raises ``ConfigError`` for a mistake in a setting or a decorator."""

    def __init__(self, title: str) -> None:
        project = project_limits()
        self._routes = project.routes()  # they add rules to the limiter
        limits, urls = project.limits, settings.ROOT_URLCONF
        package = getattr(urls, "__name__", urls)
        super().__init__(title, limits.settings, limits.limiter.rules, self._routes.all, package)
        self.is_limited = bool(
            self._routes.has_marks or getattr(settings, SETTING, None) or positions_of(RateLimitMiddleware)
        )

    def route(self, request: ASGIRequest) -> Routed:
        path = request.path
        with translation.override(translation.get_language_from_path(path) or settings.LANGUAGE_CODE):
            route, params = self._routes.find(path)
        scopes = [*scopes_of(route.callback)]
        return Routed(path, route.destination(request.method), params, {SCOPE: scopes[0]} if scopes else {})

    def problems(self) -> Iterator[str]:
        """Yield the errors of the system checks, too."""
        yield from super().problems()
        yield from (_text_of(message) for message in check_project() if message.level >= checks.ERROR)

    def notes(self) -> Iterator[str]:
        """Yield the warnings of the system checks."""
        yield from (_text_of(message) for message in check_project() if message.level < checks.ERROR)


def open_source(_: object, title: str) -> Source | None:
    """Return the rules of the project of a handler; None when nothing is limited."""
    source = DjangoSource(title)
    return source if source.is_limited else None


def _text_of(message: checks.CheckMessage) -> str:
    return " ".join(filter(None, (message.msg, message.hint)))
