"""Rate limiting for Starlette: the middleware, and the decorators for views.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

from operator import attrgetter

from .asgi.middleware import RateLimitMiddleware
from .errors import RateLimitExceeded
from .http.checks import AsyncCheck
from .http.usage import NO_STORE, AsyncUsage
from .rules.decorators import exempt, limit, messages

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "check", "exempt", "limit", "messages", "usage"]

check = AsyncCheck("check", attrgetter("scope"))


def _respond(found: object) -> object:
    from starlette.responses import JSONResponse

    return JSONResponse(found, headers=NO_STORE)


usage = AsyncUsage("usage", attrgetter("scope"), _respond)
