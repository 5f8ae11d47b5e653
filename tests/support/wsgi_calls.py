"""Small WSGI applications behind the middleware, and a strict server."""

import sys
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from calls import limiter

from ratelimit_mw import Limiter
from ratelimit_mw.wsgi import RateLimitMiddleware

Environ = dict[str, Any]
HEADERS = [("Content-Type", "text/plain")]
FIELDS = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"]


class Served:
    """One request, served by a strict server: the response and the errors."""

    def __init__(self, app: Any, chunks: int | None = None, closes: int = 1, **environ: Any) -> None:
        self.status, self.headers, self.body = "", [], b""
        self.starts = 0
        self.environ = environ_of(**environ)
        body = app(self.environ, self.start_response)
        try:
            for _, chunk in zip(range(sys.maxsize if chunks is None else chunks), body, strict=False):
                assert self.starts, "a chunk before start_response"
                self.body += chunk
        finally:
            for _ in range(closes):
                getattr(body, "close", lambda: None)()

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if exc_info is None:
            assert not self.starts, "start_response called twice without exc_info"
        elif self.body:
            raise exc_info[1]
        self.starts += 1
        self.status, self.headers = status, headers
        return self.write

    def write(self, data: bytes) -> None:
        self.body += data

    def names(self) -> list[str]:
        return [name for name, _ in self.headers]


def environ_of(**changed: Any) -> Environ:
    environ: Environ = {"REMOTE_ADDR": "192.0.2.7", "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    environ.update(changed)
    return {name: value for name, value in environ.items() if value is not None}


def limited(app: Any, rate: Limiter | None = None, **options: Any) -> Any:
    """Return the application behind the middleware, with a validator on each side."""
    return validator(RateLimitMiddleware(validator(app), limiter=rate or limiter(), **options))


def listing(environ: Environ, start_response: Any) -> list[bytes]:
    start_response("200 OK", HEADERS)
    return [b"hel", b"lo"]


def statuses(app: Any, times: int, **environ: Any) -> list[int]:
    return [int(Served(app, **environ).status[:3]) for _ in range(times)]
