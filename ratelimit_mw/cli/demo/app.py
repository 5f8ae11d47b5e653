"""The application that the demo serves: Starlette behind ``RateLimitMiddleware``, and the process it runs in.

It answers every path. The limits are in ``demo.toml`` beside this file.
"""

from __future__ import annotations

import base64
import binascii
import socket
import sys
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from ...asgi.middleware import ASGIRequest, RateLimitMiddleware
from .server import SETTINGS
from .traffic import PASSWORD

__all__ = ["app"]


async def page(request: Request) -> Response:
    return PlainTextResponse(f"{request.url.path}\n")


async def login(request: Request) -> Response:
    _, password = _credentials(request.headers.get("authorization", ""))
    return PlainTextResponse("welcome\n") if password == PASSWORD else PlainTextResponse("wrong\n", 401)


async def anything(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("here you are\n")(scope, receive, send)


def account(request: ASGIRequest) -> str | None:
    """Who wants to sign in: a feature of our own, for the rule whose key is ``account``."""
    name, _ = _credentials(request.headers.get("authorization", ""))
    return name or None


def _credentials(authorization: str) -> tuple[str, str]:
    """Account and password of HTTP Basic authentication; two empty texts when there are none."""
    try:
        decoded = base64.b64decode(authorization.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    name, _, password = decoded.partition(":")
    return name, password


pages = Starlette(
    routes=[
        Route("/articles/{number}", page),
        Route("/search", page),
        Route("/login", login, methods=["POST"]),
        Mount("/", anything),
    ]
)
app = RateLimitMiddleware(pages, settings=SETTINGS, features={"account": account})


def main(port: int) -> None:
    """Serve on this port, or on a free one when it is 0; say which on stdout. End when stdin does.

    Stdin is a pipe from the demo: whatever ends that process, even a kill, ends this one.
    """
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{port}: {error.strerror}")
    server = uvicorn.Server(
        # The client's address is for the middleware to find: uvicorn shall not do it before.
        uvicorn.Config(app, log_level="warning", access_log=False, proxy_headers=False, timeout_graceful_shutdown=2)
    )
    threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run(sockets=[listening])


def _end_with_stdin(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


if __name__ == "__main__":
    main(int(sys.argv[1]))
