"""A throttle for Django REST framework. It decides where the framework does, so it knows the framework's user.

Its rules are in the settings, with ``match = { scope = "uploads" }``. Only this throttle provides ``scope``.
"""

import time
from typing import Any

from rest_framework.exceptions import APIException, PermissionDenied

from ..decision import Verdict
from ..errors import MissingMiddlewareError
from ..http.limiter import plan_without
from ..testmode import testmode
from .admission import ATTRIBUTE, DjangoAdmission
from .limits import project_limits
from .request import DjangoRequest

__all__ = ["Throttle"]


class Throttle:
    """Limit the views of REST framework by the rules of their scope.

    A rejection refunds the other throttles of the view, and nothing that the middleware has consumed. A deny list gives
    403, an unreachable store 503. ``@exempt`` applies here too.

    Raises:
        ConfigError: No rule has the scope of the view.
        MissingMiddlewareError: ``MIDDLEWARE`` does not list ``RateLimitMiddleware``.

    Example:
        class Uploads(APIView):
            throttle_classes = [Throttle]
            throttle_scope = "uploads"
    """

    decides_scope = True
    scope: str | None = None
    """The scope of all views with this throttle. Set it in a subclass; it overrides ``throttle_scope``."""

    def __init__(self) -> None:
        self.verdict = Verdict()

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the rules of the view's scope. A request that was rejected before consumes nothing.

        Args:
            request: The request of REST framework.
            view: The view. Its ``throttle_scope`` is the scope, unless this throttle has one.

        Returns:
            Whether the request is allowed.
        """
        scope = self.scope or getattr(view, "throttle_scope", None)
        if scope is None or testmode.off:
            return True
        admission: DjangoAdmission | None = getattr(request._request, ATTRIBUTE, None)
        if admission is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        if not admission.verdict:
            return True
        self.verdict = _decide(admission, request, view, scope)
        if self.verdict.denied:
            raise PermissionDenied
        if self.verdict.unavailable:
            raise _Unavailable
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after


class _Unavailable(APIException):  # type: ignore[misc] # REST framework has no types
    status_code = 503
    default_detail = "The service is busy. Try again later."


def _decide(admission: DjangoAdmission, throttled: Any, view: Any, scope: str) -> Verdict:
    project = project_limits()
    earlier = admission.request
    request = DjangoRequest(throttled._request)  # anew, because the body may have been read since
    request.endpoint, request.path_params = earlier.endpoint, earlier.path_params
    request.first = earlier
    request.user, request.throttle_scope = throttled.user, scope
    plan, names = project.limits.plan(request, earlier.to), project.rules_of(scope, type(view))
    plan = plan_without(plan, tuple(rule.name for rule in plan.rules if rule.name not in names))
    verdict = admission.throttle(plan, request)
    if verdict.delay:
        time.sleep(verdict.delay)
    return verdict
