"""A whole request in each framework: alone, with this package, and with the package that is common there.

Each application has two views, one of which is always rejected after its first request. All count by IP address in
memory, and send the rate limit headers that they send by default or have an option for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Final

import django
import django_ratelimit.decorators
import fastapi
import fastapi_limiter.depends
import flask
import flask_limiter.util
import pyrate_limiter
import slowapi.errors
import slowapi.util
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path as url
from ratelimit import RateLimitMiddleware as AsgiRateLimit
from ratelimit import Rule as AsgiRule
from ratelimit.backends.simple import MemoryBackend
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import ratelimit_mw.asgi
import ratelimit_mw.flask
import ratelimit_mw.starlette
import ratelimit_mw.wsgi
from benchmarks.middleware import bare, by_ip, driven
from benchmarks.timing import per_call, progress, table
from ratelimit_mw import Limiter, Rule

CALLS: Final = 300
WARM: Final = 10_000
"""So many requests look for the headers of a proxy that is not in the settings."""
ALLOWED, REJECTED = "/allowed", "/rejected"
LIMITS: Final = {ALLOWED: "1000000/minute", REJECTED: "1/day"}
ENVIRON: Final = {
    "REQUEST_METHOD": "GET",
    "SCRIPT_NAME": "",
    "QUERY_STRING": "",
    "REMOTE_ADDR": "192.0.2.7",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "8000",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "HTTP_HOST": "example.com",
    "HTTP_USER_AGENT": "bench",
    "HTTP_ACCEPT": "*/*",
    "wsgi.url_scheme": "http",
    "wsgi.multithread": True,
}
Runs = dict[str, Callable[[int], None]]
Drive = Callable[[Any, str], Callable[[int], None]]


def asked(app: Any, path: str) -> Callable[[int], None]:
    """Requests to a WSGI application, one after another."""

    def start_response(status: str, headers: Any, exc_info: Any = None) -> None:
        pass

    def run(calls: int) -> None:
        for _ in range(calls):
            body = app({**ENVIRON, "PATH_INFO": path, "wsgi.input": BytesIO()}, start_response)
            b"".join(body)
            if hasattr(body, "close"):
                body.close()

    return run


def runs(drive: Drive, alone: Any, ours: Any, peer: Any = None, peer_prefix: str = "") -> Runs:
    """Return the candidates of one framework."""
    every = {"alone": drive(alone, ALLOWED), "allowed": drive(ours, ALLOWED), "rejected": drive(ours, REJECTED)}
    every["allowed"](WARM)
    if peer is not None:
        for kind, path in (("peer, allowed", ALLOWED), ("peer, rejected", REJECTED)):
            every[kind] = drive(peer, peer_prefix + path)
    return every


def limiter() -> Limiter:
    return Limiter([Rule(name=path[1:], match={"path": path}, limits=limits) for path, limits in LIMITS.items()])


def in_wsgi() -> Runs:
    def alone(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    return runs(asked, alone, ratelimit_mw.wsgi.RateLimitMiddleware(alone, limiter=limiter()))


def in_asgi() -> Runs:
    rules = {f"^{ALLOWED}": [AsgiRule(minute=1_000_000)], f"^{REJECTED}": [AsgiRule(day=1)]}
    peer = AsgiRateLimit(bare, by_ip, MemoryBackend(), rules)
    return runs(driven, bare, ratelimit_mw.asgi.RateLimitMiddleware(bare, limiter=limiter()), peer)


def in_starlette() -> Runs:
    def app() -> Starlette:
        async def view(request: Any) -> Any:
            return PlainTextResponse("ok")

        return Starlette(routes=[Route(path, view) for path in LIMITS])

    ours = app()
    ours.add_middleware(ratelimit_mw.starlette.RateLimitMiddleware, limiter=limiter())
    return runs(driven, app(), ours)


def in_fastapi(peer: fastapi.FastAPI, add_limited: Callable[[fastapi.FastAPI, str, Any], None]) -> Runs:
    """Return the candidates; ``add_limited`` adds a view of a path with the limits of the peer."""

    def with_views(app: fastapi.FastAPI, add: Callable[..., None] = fastapi.FastAPI.add_api_route) -> fastapi.FastAPI:
        for path in LIMITS:

            async def view(request: fastapi.Request) -> Any:
                return PlainTextResponse("ok")

            view.__name__ = path[1:]
            add(app, path, view)
        return app

    ours = with_views(fastapi.FastAPI())
    ours.add_middleware(ratelimit_mw.starlette.RateLimitMiddleware, limiter=limiter())
    return runs(driven, with_views(fastapi.FastAPI()), ours, with_views(peer, add_limited))


def beside_fastapi_limiter() -> Runs:
    rates = {ALLOWED: (1_000_000, pyrate_limiter.Duration.MINUTE), REJECTED: (1, pyrate_limiter.Duration.DAY)}

    def add(app: fastapi.FastAPI, path: str, view: Any) -> None:
        one = pyrate_limiter.Limiter(pyrate_limiter.Rate(*rates[path]))
        app.add_api_route(path, view, dependencies=[fastapi.Depends(fastapi_limiter.depends.RateLimiter(one))])

    return in_fastapi(fastapi.FastAPI(), add)


def beside_slowapi() -> Runs:
    limits = slowapi.Limiter(key_func=slowapi.util.get_remote_address, headers_enabled=True)
    peer = fastapi.FastAPI()
    peer.state.limiter = limits
    peer.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)
    return in_fastapi(peer, lambda app, path, view: app.add_api_route(path, limits.limit(LIMITS[path])(view)))


def in_flask() -> Runs:
    def app(decorate: Callable[[str], Callable[[Any], Any]] = lambda path: lambda view: view) -> flask.Flask:
        built = flask.Flask(__name__)
        for path in LIMITS:

            def view() -> str:
                return "ok"

            view.__name__ = path[1:]  # Flask-Limiter finds the limits of a view by its name
            built.add_url_rule(path, path[1:], decorate(path)(view))
        return built

    ours = app()
    ratelimit_mw.flask.RateLimiter(ours, limiter=limiter())
    limits = flask_limiter.Limiter(flask_limiter.util.get_remote_address, storage_uri="memory://", headers_enabled=True)
    peer = app(lambda path: limits.limit(LIMITS[path]))
    limits.init_app(peer)
    return runs(asked, app(), ours, peer)


def view(request: Any) -> HttpResponse:
    return HttpResponse("ok")


def counted(path: str) -> Any:
    rate = {ALLOWED: "1000000/m", REJECTED: "1/d"}[path]
    return django_ratelimit.decorators.ratelimit(key="ip", rate=rate, block=True)(view)


urlpatterns = [url(path[1:], view) for path in LIMITS] + [url(f"peer{path}", counted(path)) for path in LIMITS]


def in_django() -> Runs:
    if not settings.configured:
        settings.configure()
        django.setup()
    settings.ROOT_URLCONF, settings.MIDDLEWARE, settings.RATELIMIT_MW = __name__, [], limiter()
    alone = WSGIHandler()
    settings.MIDDLEWARE = ["ratelimit_mw.django.RateLimitMiddleware"]
    return runs(asked, alone, WSGIHandler(), alone, "/peer")


FRAMEWORKS: Final = {
    ("ASGI", "asgi-ratelimit 0.10, no headers"): in_asgi,
    ("Starlette", ""): in_starlette,
    ("FastAPI", "slowapi 0.1.10"): beside_slowapi,
    ("FastAPI", "fastapi-limiter 0.2, no headers, one count for all clients"): beside_fastapi_limiter,
    ("WSGI", ""): in_wsgi,
    ("Flask", "Flask-Limiter 4.1"): in_flask,
    ("Django", "django-ratelimit 4.1, no headers"): in_django,
}


def row(framework: str, peer: str, candidates: Runs) -> Iterator[str]:
    """Return the cells of a framework: microseconds beyond the application alone, and whole requests compared."""
    progress(f"frameworks: {framework} {peer}")
    times = per_call(candidates, CALLS)
    alone = times["alone"]
    yield framework
    yield from (f"{(times[kind] - alone) / 1000:.1f}" for kind in ("allowed", "rejected"))
    yield f"{times['rejected'] / times['allowed']:.2f}"
    yield peer
    for kind in ("peer, allowed", "peer, rejected"):
        yield f"{(times[kind] - alone) / 1000:.1f}" if peer else ""


def report() -> str:
    rows = [tuple(row(framework, peer, build())) for (framework, peer), build in FRAMEWORKS.items()]
    head = ("", "allowed", "rejected", "whole 429 / 200", "peer", "its allowed", "its rejected")
    return table("A request in each framework, µs of CPU beyond the application alone", rows, head)
