"""Applications that respond with the body they have read, for the real servers of ``test_body_servers.py``."""

from __future__ import annotations

from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware as ASGIMiddleware
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware

SETTINGS = {
    "rules": [{"name": "user", "key": ["email", "path"], "limits": "1/hour"}],
    "headers": ["x-ratelimit"],
    "body_limit": "1KiB",
    "body_timeout": "300ms",
}


async def asgi_echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def wsgi_echo(environ: Any, start_response: Any) -> list[bytes]:
    chunked = "HTTP_TRANSFER_ENCODING" in environ
    body = environ["wsgi.input"].read() if chunked else environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


asgi = ASGIMiddleware(asgi_echo, settings=SETTINGS)
wsgi = WSGIMiddleware(wsgi_echo, settings=SETTINGS)
