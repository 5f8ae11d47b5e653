"""Rate limiting for any WSGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``.

For Werkzeug: ``RateLimitMiddleware(app, url_map=url_map)``, ``limit`` and ``exempt`` on its views, and ``check``.
"""

from typing import Any

from ..http.in_view import ask, ask_rule, ask_rules, in_threads, verdict_by
from ..rules.decorators import exempt, limit
from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "check", "exempt", "limit", "verdict"]


def _environ_of(request: Any) -> Any:
    return getattr(request, "environ", request)


check, _ = in_threads(ask_rule, ask_rules, _environ_of)
verdict = verdict_by(ask, _environ_of)
