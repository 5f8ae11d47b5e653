"""Rate limiting for any WSGI application: ``RateLimitMiddleware(app, settings="ratelimit.toml")``.

For Werkzeug: ``RateLimitMiddleware(app, url_map=url_map)``, ``limit`` and ``exempt`` on its views, and ``check``.
"""

from ..http.in_view import in_threads, of_request
from ..rules.decorators import exempt, limit
from .middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "check", "exempt", "limit"]

check, _ = in_threads(of_request(lambda request: getattr(request, "environ", request)), dict)
