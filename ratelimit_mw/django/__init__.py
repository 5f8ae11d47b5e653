"""Rate limiting for Django: ``RateLimitMiddleware``, the decorators ``limit`` and ``exempt``, and ``limiter()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks and the command ``manage.py ratelimit``.
"""

from ..http.checks import AsyncCheck, Check
from ..rules.decorators import exempt, limit
from .limits import limiter
from .middleware import RateLimitMiddleware
from .request import server_data

__all__ = ["RateLimitMiddleware", "acheck", "check", "exempt", "limit", "limiter"]

check = Check("check", server_data)
acheck = AsyncCheck("acheck", server_data)
