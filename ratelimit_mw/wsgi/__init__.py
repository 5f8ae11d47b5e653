"""Rate limiting for any WSGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``.

For Werkzeug: ``RateLimitMiddleware(app, url_map=url_map)``, ``limit`` and ``exempt`` on its views, and ``check``.
"""

from typing import Any

from ..http.in_view import in_threads, of_request, verdict_by
from ..rules.decorators import exempt, limit
from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "check", "exempt", "limit", "verdict"]


def _environ_of(request: Any) -> Any:
    return getattr(request, "environ", request)


check, _ = in_threads(of_request(_environ_of))
verdict = verdict_by(_environ_of)
