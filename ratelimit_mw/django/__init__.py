"""Rate limiting for Django: ``RateLimitMiddleware``, ``limit``, ``exempt``, ``limiter()`` and ``dashboard()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks and the command ``manage.py ratelimit``.
"""

from functools import partial

from asgiref.sync import markcoroutinefunction
from django.http import JsonResponse

from ..http.in_view import NO_STORE, in_threads, of_request, on_loops, verdict_by
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

_find, _respond = of_request(data_of), partial(JsonResponse, headers=NO_STORE)
verdict = verdict_by(server_data)
check, usage = in_threads(_find, _respond)
acheck, ausage = on_loops(_find, _respond, ("acheck", "ausage"), lambda _, work: work)
for _call in (acheck, ausage):
    markcoroutinefunction(_call)  # ``async_to_sync`` asks
