"""Rate limiting for any ASGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``."""

from .middleware import RateLimitMiddleware
from .request import ASGIRequest

__all__ = ["ASGIRequest", "RateLimitMiddleware"]
