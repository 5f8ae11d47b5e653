"""Applications without a limiter. Each response names what the application may take its request for.

A header has the kinds of the paths that the framework and small readers by hand see, the hosts and the API keys.
"""

import re
from collections.abc import Iterable
from typing import Any

import flask
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .paths import paths_by_hand
from .readings import REJECTED
from .targets import KEY, KEYED, VIEWS, kind_of


def report(view: str, path: str, hosts: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """Return the headers of the response of a view."""
    by_hand = paths_by_hand(path.encode("utf-8", "surrogateescape"))
    kinds = {VIEWS[view], *map(kind_of, by_hand)} - {""}
    plain = {host.strip().lower().partition(":")[0].rstrip(".") for host in hosts}
    values = sorted(set(keys)) if KEYED in kinds else []
    named = {"x-kinds": kinds, "x-hosts": plain, "x-keys": values}
    return {name: ",".join(sorted(found)).encode("ascii", "backslashreplace").decode() for name, found in named.items()}


def asgi_view(view: str) -> Any:
    async def show(request: Request) -> Response:
        hosts = [request.url.hostname or "", request.headers.get("host", "")]
        keys = request.query_params.getlist(KEY)
        return Response(headers=report(view, request.scope["path"], hosts, keys))

    return show


def flask_view(view: str) -> Any:
    def show(**_: str) -> Any:
        request = flask.request
        return "", report(view, request.path, [request.host], request.args.getlist(KEY))

    return show


def django_view(view: str) -> Any:
    from django.http import HttpResponse

    def show(request: Any, **_: str) -> HttpResponse:
        try:
            host = request.get_host()
        except REJECTED:
            host = ""
        return HttpResponse(headers=report(view, request.path_info, [host], request.GET.getlist(KEY)))

    return show


starlette = Starlette(routes=[Route(view, asgi_view(view), methods=["GET", "POST"]) for view in VIEWS])
fastapi = FastAPI(openapi_url=None)
for _view in VIEWS:
    fastapi.add_api_route(_view, asgi_view(_view), methods=["GET", "HEAD", "POST"], response_class=Response)

in_flask = flask.Flask("unprotected")
for _view in VIEWS:
    _rule = re.sub(r"{(\w+):path}", r"<path:\1>", _view)
    in_flask.add_url_rule(re.sub(r"{(\w+)}", r"<\1>", _rule), _view, flask_view(_view), methods=["GET", "POST"])

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="for tests only", MIDDLEWARE=[])

from django.urls import path  # noqa: E402 - needs the settings

urlpatterns = [
    path(re.sub(r"{(\w+)}", r"<\1>", re.sub(r"{(\w+):path}", r"<path:\1>", view))[1:], django_view(view))
    for view in VIEWS
]
in_django = get_wsgi_application()
