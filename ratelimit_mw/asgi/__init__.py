"""Rate limiting for any ASGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``."""

from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
