"""``dashboard`` for Django: URL patterns that show the limiter of the project."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path

from ..dashboard.core import Allow, Mount, is_open, redirect_into, respond
from ..limiter.limiter import Limiter
from ..rules.marks import ATTRIBUTE, OWN_PAGE
from .limits import project_limits
from .request import DjangoRequest, resolve, server_data

NAME = "ratelimit-dashboard"


def dashboard(limiter: Limiter | None = None, *, allow: Allow | None = None, writes: bool = False) -> list[Any]:
    """Return the dashboard as URL patterns. Limits apply to it only where a rule names its path or view.

    Its URL has the name ``ratelimit-dashboard``.

    Args:
        limiter: The limiter to show. Default: that of ``settings.RATELIMIT_MW``.
        allow: Your function of Django's request, sync or async, which returns whether the client may see the
            dashboard. Without it, a browser asks for the password that the log has at the start.
        writes: Whether those who see the dashboard may also reset a client, lift its ban and change its limits.

    Returns:
        The patterns, for ``include``.

    Raises:
        ConfigError: An argument is invalid.
        MissingExtraError: The extra ``dashboard`` is not installed.

    Example:
        path("ratelimit/", include(dashboard(allow=lambda request: request.user.is_staff)))
    """
    mount = Mount(limiter, allow, writes).check()

    def show(framework_request: Any, below: str = "") -> HttpResponse:
        request = DjangoRequest(framework_request)
        if not (below or request.path.endswith("/")):
            response = redirect_into(request.path, request.query_string)
        else:
            opens = is_open(resolve(mount.ask(request)), server_data(framework_request))
            shown = limiter or project_limits().http_limiter.limiter
            response = respond(mount, shown, request, below.removeprefix("/"), opens)
        return HttpResponse(response.body, status=response.status, headers=response.headers)

    setattr(show, ATTRIBUTE, OWN_PAGE)
    show.csrf_exempt = True  # type: ignore[attr-defined]  # the forms have a token of their own
    return [path("", show, name=NAME), path("<path:below>", show)]
