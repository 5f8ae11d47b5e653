"""The rules of a Django project, as the commands of ``cli/`` show them."""

from functools import partial
from typing import Any, Final

from django.conf import settings
from django.utils import translation

from ..asgi.request import ASGIRequest
from ..cli.source import Source
from ..http.needs import requires_user
from ..keys.features import Features
from ..settings import SETTING
from .apps import check_project
from .limits import project_limits
from .middleware import RateLimitMiddleware, positions_of
from .request import SCOPE
from .routes import throttling

_NO_USER: Final = "ratelimit_mw.W003"


def open_source(title: str) -> Source | None:
    """Return the rules of the project; None when nothing is limited.

    Raises ``ConfigError`` for a mistake in a setting or a decorator.
    """
    project = project_limits()
    routes = project.routes()  # they add rules to the limiter
    if not (getattr(settings, SETTING, None) or positions_of(RateLimitMiddleware)):
        return None
    # Without a user, a key such as "user|ip" counts by IP address: a note, for the limit applies in another way.
    needs_user = any(map(requires_user, project.http_limiter.in_force.rules.rules))
    found = check_project()
    problems = [each.msg for each in found if needs_user or each.id != _NO_USER]
    notes = [each.msg for each in found if each.msg not in problems]
    return Source.from_limiter(title, project.http_limiter, routes.all, partial(_find, routes), notes, problems)


def _find(routes: Any, request: ASGIRequest) -> Features:
    path = request.path
    request.native["raw_path"] = b""  # Django has only the decoded path
    with translation.override(translation.get_language_from_path(path) or settings.LANGUAGE_CODE):
        route, params = routes.resolve(path, translation.get_language())
    drf, request.to, request.path_params = throttling(), route.destination(request.method), params
    scopes = [scope for _, scope in drf.throttles_of(route.target)] if drf else []
    return {"path": request.to.without_suffix(path, params), **({SCOPE: scopes[0]} if scopes else {})}
