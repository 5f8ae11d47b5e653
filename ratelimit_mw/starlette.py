"""Rate limiting for Starlette: the middleware, and the decorators for views.

app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""

from operator import attrgetter

from .asgi.middleware import RateLimitMiddleware
from .decision import RateLimitExceeded
from .http.in_view import ask, ask_rule, ask_rules, on_loops, verdict_by
from .rules.decorators import exempt, limit, messages

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "check", "exempt", "limit", "messages", "usage", "verdict"]

_scope_of = attrgetter("scope")
check, usage = on_loops(ask_rule, ask_rules, _scope_of)
verdict = verdict_by(ask, _scope_of)
