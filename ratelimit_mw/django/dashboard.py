"""``dashboard`` for Django: URL patterns that show the limiter of the project."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpResponse
from django.urls import path

from ..dashboard.core import Mount, dashboard_by, is_open, respond
from ..rules.marks import ATTRIBUTE, OWN_PAGE
from .limits import project_limits
from .request import DjangoRequest, native_of, wait_for

NAME: Final = "ratelimit-dashboard"


def _patterns(mount: Mount) -> list[Any]:
    """Return the URL patterns, for ``include``. The URL of the page has the name ``ratelimit-dashboard``."""

    def show(framework_request: Any, below: str = "") -> HttpResponse:
        request = DjangoRequest(framework_request)
        opens = is_open(wait_for(mount.ask(request)), native_of(framework_request))
        shown = mount.limiter or project_limits().http_limiter.limiter
        response = respond(mount, shown, request, below, opens)
        return HttpResponse(response.body, status=response.status, headers=response.headers)

    setattr(show, ATTRIBUTE, OWN_PAGE)
    show.csrf_exempt = True  # type: ignore[attr-defined]  # the forms have a token of their own
    return [path("", show, name=NAME), path("<path:below>", show)]


dashboard: Final = dashboard_by(_patterns)
