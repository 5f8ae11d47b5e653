"""Rate limiting for Starlette: the middleware, and the decorators for views.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

from .asgi.middleware import RateLimitMiddleware
from .errors import RateLimitExceeded
from .rules.decorators import exempt, limit, messages

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "exempt", "limit", "messages"]
