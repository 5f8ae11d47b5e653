"""Rate limiting for Django: ``RateLimitMiddleware``, ``limit``, ``exempt``, ``limiter()`` and ``dashboard()``.

In ``INSTALLED_APPS``, which is optional, it adds system checks.
"""

from asgiref.sync import markcoroutinefunction

from ..http.in_view import ask, ask_rule, ask_rules, in_threads, on_loops, verdict_by
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .limits import limiter
from .middleware import RateLimitMiddleware
from .request import native_of, native_with_data

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

verdict = verdict_by(ask, native_of)
check, usage = in_threads(ask_rule, ask_rules, native_with_data)
acheck, ausage = on_loops(ask_rule, ask_rules, native_with_data, lambda work: work)
for _call in (acheck, ausage):
    markcoroutinefunction(_call)  # ``async_to_sync`` asks
