"""Rate limiting for Starlette: the middleware, and the decorators for views.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

from operator import attrgetter

from .asgi.middleware import RateLimitMiddleware
from .errors import RateLimitExceeded
from .http.checks import AsyncCheck
from .rules.decorators import exempt, limit, messages

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "check", "exempt", "limit", "messages"]

check = AsyncCheck("check", attrgetter("scope"))
