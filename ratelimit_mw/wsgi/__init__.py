"""Rate limiting for any WSGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``."""

from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware"]
