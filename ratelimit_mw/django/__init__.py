"""Rate limiting for Django: ``RateLimitMiddleware``, ``limit``, ``exempt``, ``limiter()`` and ``dashboard()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks and the command ``manage.py ratelimit``.
"""

from functools import partial

from django.http import JsonResponse

from ..http.checks import AsyncCheck, Check
from ..http.usage import NO_STORE, AsyncUsage, BlockingUsage
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .limits import limiter
from .middleware import RateLimitMiddleware
from .request import data_of

__all__ = ["RateLimitMiddleware", "acheck", "ausage", "check", "dashboard", "exempt", "limit", "limiter", "usage"]

check = Check("check", data_of)
acheck = AsyncCheck("acheck", data_of)
_respond = partial(JsonResponse, headers=NO_STORE)
usage = BlockingUsage("usage", data_of, _respond)
ausage = AsyncUsage("ausage", data_of, _respond)
