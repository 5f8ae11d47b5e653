"""Rate limiting for Django: ``RateLimitMiddleware``, the decorators ``limit`` and ``exempt``, and ``limiter()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks and the command ``manage.py ratelimit``.
"""

from ..rules.decorators import exempt, limit
from .limits import limiter
from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "exempt", "limit", "limiter"]
