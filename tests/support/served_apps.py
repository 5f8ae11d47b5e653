"""An ASGI and a WSGI application for real server processes, with the same behaviour under both middlewares.

Below ``/plain`` no proxy is trusted. Below ``/behind`` the local proxy and clients on a Unix socket are trusted. Below
``/bodies`` a rule needs the body, and the response is the body that the application has read.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from asgi_checker import App, Receive, Scope, Send
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Request as WSGIRequest
from werkzeug.wrappers import Response
from werkzeug.wsgi import wrap_file

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware

PREFIXES: dict[str, list[str]] = {"/plain": [], "/behind": ["127.0.0.1", "unix"]}
LOG = {"algorithm": "sliding-window-log", "limits": "3/hour"}  # exact in any hour
FILE = Path(__file__)
BODY_SETTINGS = {
    "rules": [{"name": "user", "key": ["email", "path"], "limits": "1/hour"}],
    "headers": ["x-ratelimit"],
    "body_limit": "1KiB",
    "body_timeout": "60s",
}

_released, _released_in_thread = asyncio.Event(), threading.Event()


def limiter(prefix: str) -> Limiter:
    """Return the same rules for both middlewares. A WSGI application below a mount does not see the prefix."""
    return Limiter(
        [
            Rule(name="page", match={"path": f"{prefix}/page"}, **LOG),
            Rule(name="post", match={"path": f"{prefix}/page", "methods": ["POST"]}, **LOG),
            # Only the WSGI application has files.
            Rule(
                name="file", match={"path": [f"{prefix}/file", f"{prefix}/stream"]}, limits="1000/hour", unrouted=True
            ),
        ]
    )


# -- ASGI --------------------------------------------------------------------------------------------------


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


async def stream(request: Request) -> StreamingResponse:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await _released.wait()
        yield b"second"

    return StreamingResponse(chunks())


async def release(request: Request) -> PlainTextResponse:
    _released.set()
    return PlainTextResponse("released")


def _asgi(prefix: str, trusted: list[str]) -> App:
    routes = [
        Route(f"{prefix}/page", page, methods=["GET", "POST"]),
        Route(f"{prefix}/stream", stream),
        Route(f"{prefix}/release", release),
    ]
    return RateLimitMiddleware(Starlette(routes=routes), limiter=limiter(prefix), trusted_proxies=trusted)


async def asgi_echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_apps = {prefix: _asgi(prefix, trusted) for prefix, trusted in PREFIXES.items()}
_apps["/bodies/slow"] = RateLimitMiddleware(asgi_echo, settings={**BODY_SETTINGS, "body_timeout": "300ms"})
_apps["/bodies"] = RateLimitMiddleware(asgi_echo, settings=BODY_SETTINGS)


async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
    prefix = next((prefix for prefix in _apps if scope.get("path", "").startswith(prefix)), "/plain")
    await _apps[prefix](scope, receive, send)


# -- WSGI --------------------------------------------------------------------------------------------------


@WSGIRequest.application
def _views(request: WSGIRequest) -> Response:
    if request.path == "/stream":
        return Response(_chunks())
    if request.path == "/release":
        _released_in_thread.set()
        return Response("released")
    if request.path == "/file":
        return Response(wrap_file(request.environ, FILE.open("rb")), direct_passthrough=True)
    return Response("page")


def _chunks() -> Iterator[bytes]:
    yield b"first"
    _released_in_thread.wait(60)
    yield b"second"


def wsgi_echo(environ: Any, start_response: Any) -> list[bytes]:
    chunked = "HTTP_TRANSFER_ENCODING" in environ
    body = environ["wsgi.input"].read() if chunked else environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


wsgi: Any = DispatcherMiddleware(
    _views,
    {
        "/bodies": WSGIMiddleware(wsgi_echo, settings=BODY_SETTINGS),
        **{
            prefix: WSGIMiddleware(_views, limiter=limiter(""), trusted_proxies=trusted)
            for prefix, trusted in PREFIXES.items()
        },
    },
)
