"""Applications of each framework with the dashboard, and requests to them in this process or through real servers.

A real server builds one with the settings of the file that ``DASHBOARD_SETTINGS`` names.
"""

import asyncio
import base64
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any, NamedTuple

import httpx
from django_calls import MIDDLEWARE, hello, project
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import ratelimit_mw.django
import ratelimit_mw.fastapi
import ratelimit_mw.flask
from ratelimit_mw import Limiter
from ratelimit_mw.cli.serve.app import DecisionService
from ratelimit_mw.dashboard import dashboard
from ratelimit_mw.http.token import start_token
from ratelimit_mw.starlette import RateLimitMiddleware

SETTINGS = "DASHBOARD_SETTINGS"
COMMON = "django.middleware.common.CommonMiddleware"  # adds a missing slash
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
LOCAL = "http://127.0.0.1:8000"
Allow = Callable[[Any], Any] | None


def is_staff(request: Any) -> bool:
    """Return whether a header says so. All frameworks have ``request.headers``."""
    return request.headers.get("X-Staff") == "yes"


async def ais_staff(request: Any) -> bool:
    return is_staff(request)


def starlette_app(limiter: Limiter, allow: Allow = None, writes: bool = False) -> Any:
    routes = [
        Route("/", lambda _: PlainTextResponse("hello")),
        Mount("/ratelimit", dashboard(limiter, allow=allow, writes=writes)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, limiter=limiter)])


def fastapi_app(limiter: Limiter, allow: Allow = None, writes: bool = False) -> Any:
    """The dashboard is in a sub-application, and shows the limiter of the middleware."""
    app, inner = FastAPI(), FastAPI()
    app.add_middleware(ratelimit_mw.fastapi.RateLimitMiddleware, limiter=limiter)
    app.get("/")(lambda: "hello")
    inner.mount("/ratelimit", dashboard(allow=allow, writes=writes))
    app.mount("/admin", inner)
    return app


def flask_app(limiter: Limiter, allow: Allow = None, writes: bool = False, shown: Limiter | None = None) -> Any:
    app = Flask("app")
    app.url_map.strict_slashes = False
    app.add_url_rule("/", "home", lambda: "hello")
    ratelimit_mw.flask.RateLimiter(app, limiter=limiter)
    app.register_blueprint(ratelimit_mw.flask.dashboard(shown, allow=allow, writes=writes), url_prefix="/ratelimit")
    return app


@contextmanager
def django_project(
    limiter: Limiter,
    allow: Allow = None,
    writes: bool = False,
    shown: Limiter | None = None,
    is_async: bool = False,
) -> Iterator[Any]:
    from django.core.asgi import get_asgi_application
    from django.core.wsgi import get_wsgi_application
    from django.urls import include, path

    pages = ratelimit_mw.django.dashboard(shown, allow=allow, writes=writes)
    patterns = [path("", hello), path("ratelimit/", include(pages))]
    with project(limiter, *patterns, middleware=[COMMON, CSRF, *MIDDLEWARE]):
        yield get_asgi_application() if is_async else get_wsgi_application()


class Framework(NamedTuple):
    """How a framework shows the dashboard: its application, the path of the dashboard, and the kind of server."""

    build: Callable[[Limiter, Allow, bool], AbstractContextManager[Any]]
    path: str
    is_asgi: bool


FRAMEWORKS = {
    "starlette": Framework(lambda *args: nullcontext(starlette_app(*args)), "/ratelimit", True),
    "fastapi": Framework(lambda *args: nullcontext(fastapi_app(*args)), "/admin/ratelimit", True),
    "flask": Framework(lambda *args: nullcontext(flask_app(*args)), "/ratelimit", False),
    "django": Framework(django_project, "/ratelimit", False),
    "django-asgi": Framework(lambda *args: django_project(*args, is_async=True), "/ratelimit", True),
}
SERVE = Framework(lambda limiter, *_: nullcontext(DecisionService(limiter, start_token())), "/dashboard", True)

_UVICORN = ("uvicorn", "--factory", "--port", "{port}")
_GUNICORN = ("gunicorn", "--threads", "8", "--bind", "127.0.0.1:{port}")
SERVERS = {
    "starlette": (*_UVICORN, "served_dashboards:starlette"),
    "fastapi": (*_UVICORN, "served_dashboards:fastapi"),
    "flask": (*_GUNICORN, "served_dashboards:flask()"),
    "django": (*_GUNICORN, "served_dashboards:django()"),
    "django-asgi": (*_UVICORN, "served_dashboards:django_asgi"),
    "serve": ("served_dashboards", "serve", "{file}", "--port", "{port}"),
}
"""The commands of real servers."""


def service(token: str, gateway: str | None = None) -> Framework:
    return SERVE._replace(build=lambda limiter, *_: nullcontext(DecisionService(limiter, token, gateway)))


def basic(password: str, user: str = "") -> dict[str, str]:
    """Return the header of a browser whose user has written a password."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Mounted:
    """An application with the dashboard. ``ask`` sends a request from ``peer``, with the password of this process."""

    def __init__(self, app: Any, framework: Framework, limiter: Limiter) -> None:
        self.app = app
        self.limiter = limiter
        self.path = framework.path
        self._is_asgi = framework.is_asgi

    def ask(
        self, below: str = "/", method: str = "GET", peer: str = "127.0.0.1", base: str = LOCAL, **options: Any
    ) -> httpx.Response:
        """Send a request to a path below the dashboard."""
        options.setdefault("headers", basic(start_token()))
        return self.send(self.path + below, method, peer, base, **options)

    def send(
        self, path: str, method: str = "GET", peer: str = "127.0.0.1", base: str = LOCAL, **options: Any
    ) -> httpx.Response:
        if not self._is_asgi:
            with httpx.Client(transport=httpx.WSGITransport(self.app, remote_addr=peer), base_url=base) as client:
                return client.request(method, path, **options)
        return asyncio.run(self._asend(path, method, peer, base, options))

    async def _asend(self, path: str, method: str, peer: str, base: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=(peer, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **options)


@contextmanager
def mounted(framework: Framework, settings: Any, allow: Allow = None, writes: bool = False) -> Iterator[Mounted]:
    """Build the application with a limiter of these settings."""
    with closing(Limiter.from_settings(settings)) as limiter, framework.build(limiter, allow, writes) as app:
        yield Mounted(app, framework, limiter)


_open = ExitStack()


def application(name: str) -> Any:
    """Return the application of a framework for a real server. It is open until the process ends."""
    return _open.enter_context(FRAMEWORKS[name].build(Limiter.from_settings(os.environ[SETTINGS]), None, False))
