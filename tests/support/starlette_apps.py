"""Starlette applications behind the middleware, and views to limit."""

from typing import Any

from calls import ask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.starlette import RateLimitMiddleware, limit
from ratelimit_mw.testing import ManualClock


def application(routes: list[BaseRoute], *rules: Rule, limiter: Limiter | None = None, **options: Any) -> Starlette:
    """Return an application behind the middleware, with the rules of a file."""
    limiter = limiter or Limiter(rules, clock=ManualClock(1_000_000.0))
    exception_handlers = options.pop("exception_handlers", None)
    app = Starlette(routes=routes, exception_handlers=exception_handlers)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


def statuses(app: Any, *paths: str, **request: Any) -> list[int]:
    return [ask(app, path, **request).status_code for path in paths]


async def hello(request: Any) -> Response:
    return PlainTextResponse("hello")


@limit("2/minute", key=["ip"])
async def asynchronous(request: Any) -> Response:
    """An async view."""
    return PlainTextResponse("async")


@limit("2/minute", key=["ip"])
def synchronous(request: Any) -> Response:
    """A view that runs in a thread."""
    return PlainTextResponse("sync")
