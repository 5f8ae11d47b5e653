"""Rate limiting for Django: ``RateLimitMiddleware``, ``limit``, ``exempt``, ``limiter()`` and ``dashboard()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks.
"""

from asgiref.sync import markcoroutinefunction

from ..http.in_view import in_threads, of_request, on_loops, verdict_by
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .limits import limiter
from .middleware import RateLimitMiddleware
from .request import data_of, server_data

__all__ = [
    "RateLimitMiddleware",
    "acheck",
    "ausage",
    "check",
    "dashboard",
    "exempt",
    "limit",
    "limiter",
    "usage",
    "verdict",
]

_find = of_request(data_of)
verdict = verdict_by(server_data)
check, usage = in_threads(_find)
acheck, ausage = on_loops(_find, lambda work: work)
for _call in (acheck, ausage):
    markcoroutinefunction(_call)  # ``async_to_sync`` asks
