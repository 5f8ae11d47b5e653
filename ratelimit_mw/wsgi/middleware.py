"""WSGI middleware. It translates the protocol, and knows nothing of counting, rules or header values.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Unpack

from ..decision import Verdict
from ..errors import ConfigError
from ..http.functions import FeatureFunctions
from ..http.limits import HttpLimiter
from ..http.warnings import warn_at_start, warn_of_user
from ..limiter.limiter import Limiter
from ..rules.declaration import is_async
from ..settings import HttpOptions, SettingsSource
from .exchange import Exchange, WSGIAdmission, WSGIRequest, decide_request, remote_user

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from werkzeug.routing import Map

    from .url_map import MapRoutes

NO_REMOTE_USER: Final = (
    "under WSGI the user is REMOTE_USER, which most servers do not set."
    " Set it in middleware outside RateLimitMiddleware"
)


class RateLimitMiddleware:
    """Limit the requests to a WSGI application.

    The application finds the verdict in ``environ["ratelimit_mw.verdict"]``. A request that a leaky-bucket queue delays
    sleeps in its worker thread.

    Args:
        app: The application.
        settings: A settings file, a dictionary or ``Settings``. Give either ``settings`` or ``limiter``.
        limiter: A limiter that you have built.
        features: Your functions of the ``WSGIRequest`` by feature, or one that returns a mapping.
        url_map: The ``Map`` of a Werkzeug application. Rules can then name its endpoints and path parameters, and
            ``limit`` and ``exempt`` apply on endpoints that are views.
        rejection: Your function of the ``WSGIRequest`` and the verdict. It returns a ``Rejection`` or a WSGI app.
        before_user: Whether a middleware or an extension inside authentication has the same ``limiter``. This one then
            decides only the rules that need no user.
        **options: Settings such as ``limits``, ``store`` and ``trusted_proxies``, which override those of ``settings``.

    Raises:
        ConfigError: An argument or a rule cannot work.

    Example:
        app = RateLimitMiddleware(app, settings={"rules": [{"name": "api", "limits": "100/minute"}]})
    """

    def __init__(
        self,
        app: WSGIApplication,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: FeatureFunctions | None = None,
        rejection: Callable[[WSGIRequest, Verdict], Any] | None = None,
        url_map: Map | None = None,
        before_user: bool = False,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        user, has_routes = {"user": remote_user}, url_map is not None
        self.http_limiter = http_limiter = HttpLimiter(
            settings, limiter, features or {}, rejection, user, options, has_routes, before_user
        )
        self.limiter, self.before_user = http_limiter.limiter, before_user
        self.routes: MapRoutes | None = None
        if url_map is None:
            http_limiter.adopt_no_routes()
        else:
            from .url_map import MapRoutes  # Werkzeug is installed where its map is

            self.routes = MapRoutes(http_limiter, url_map)
            self.routes.adopt()
        for name, must_await in (("features", http_limiter.functions.must_await), ("rejection", is_async(rejection))):
            if must_await:
                raise ConfigError("WSGI cannot await an async function. Pass a function without async", name)
        warn_at_start(http_limiter)
        warn_of_user(http_limiter, NO_REMOTE_USER)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = WSGIRequest(environ)
        if self.routes is not None:
            request.to, request.path_params = self.routes.find(environ)
        limits, plan, verdict = decide_request(self.http_limiter, request)
        admission = WSGIAdmission(limits, request, plan, verdict, environ, environ)
        exchange = Exchange(start_response)
        if not verdict.allowed:
            return exchange.reject(admission)
        exchange.admission = admission
        delay = verdict.delay if plan.may_delay else 0.0
        return exchange.run(self.app, environ, delay)
