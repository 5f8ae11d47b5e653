"""A Django project that reports differences, under WSGI and under ASGI."""

from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

from . import echo
from .echo import each_alone, each_alone_async, report, totals
from .words import TOTALS

echo.PATTERNS["legacy"] = ("/legacy/{id}", [])
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for tests only",
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW=echo.settings(),
)

from django.http import HttpResponse  # noqa: E402 - needs the settings
from django.urls import include, path, re_path  # noqa: E402

from .readings import in_django  # noqa: E402


def view_of(template: str) -> Any:
    pattern = "/files/**" if template.startswith("/files") else template

    def view(request: Any, **parameters: str) -> HttpResponse:
        if request.path == TOTALS:
            return HttpResponse(totals())
        readings = in_django(request)
        readings["endpoint"] = [template]
        if "id" in parameters:
            readings["path:id"] = [parameters["id"]]
        return HttpResponse(headers=report([pattern], request.method, readings))

    return view


urlpatterns = [
    path("login", view_of("/login")),
    path("items/<id>", view_of("/items/{id}")),
    path("files/<path:rest>", view_of("/files/{rest}")),
    path("api/", include([path("things/<name>", view_of("/api/things/{name}"))])),
    re_path(r"^legacy/(?P<id>\d+)$", view_of("/legacy/{id}")),  # matches a line feed at the end, too
    path("<path:rest>", view_of("/{rest}")),
    path("", view_of("/")),
]
wsgi = each_alone(get_wsgi_application())
asgi = each_alone_async(get_asgi_application())
