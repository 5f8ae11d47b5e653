"""A throttle for Django REST framework: it decides where the framework does, knowing whom that has authenticated.

Rules for it stand in the settings with ``match = { scope = "uploads" }``: nothing but this throttle gives ``scope``.
"""

from __future__ import annotations

import time
from typing import Any

from rest_framework.exceptions import APIException, PermissionDenied

from ..decision import Verdict
from ..errors import MissingMiddlewareError
from ..http.admission import part_of
from ..testmode import testmode
from . import conf
from .admission import Current, current_of
from .deciding import decide
from .limits import MatchedRequest, ProjectLimits
from .request import of_django

__all__ = ["Throttle"]


class Throttle:
    """``throttle_classes = [Throttle]`` and ``throttle_scope = "uploads"`` on a view.

    A rejection here gives back what the middleware has consumed: all or nothing together.
    What is no matter of limits, a deny list or a store that is down, answers 403 or 503. ``@exempt`` reaches it, too.
    Raises ``ConfigError`` where no rule has the view's scope, ``MissingMiddlewareError`` without the middleware.
    """

    decides_scope = True
    scope: str | None = None
    """For subclasses: the scope of all views that have this throttle, whatever they say themselves."""

    def __init__(self) -> None:
        self.verdict = Verdict()

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the rules of the view's scope. What was rejected before is not consumed for again."""
        scope = self.scope or getattr(view, "throttle_scope", None)
        if scope is None or testmode.off:
            return True
        django = request._request
        current = current_of(django)
        if current is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        if not django.ratelimit:
            return True
        self.verdict = _decided(conf.enforcer(), current, request, view, scope)
        if self.verdict.denied:
            raise PermissionDenied
        if self.verdict.unavailable:
            raise _Unavailable
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after


class _Unavailable(APIException):  # type: ignore[misc] # REST framework has no types
    status_code = 503
    default_detail = "The service is busy. Try again later."


def _decided(enforcer: ProjectLimits, current: Current, request: Any, view: Any, scope: str) -> Verdict:
    made = of_django(request._request)  # anew, as somebody may have read the body since
    made.endpoint, made.path_params = current.request.endpoint, current.request.path_params
    made.user, made.throttle_scope = request.user, scope
    plan = part_of(enforcer.guard.plan(made, current.view), enforcer.rules_of(scope, type(view)))
    before = list(current.pending)
    verdict = decide(enforcer, MatchedRequest(made, current.view, plan), current)
    if not verdict:
        current.throttled = True
        for pending in before:
            enforcer.limiter.refund(pending.verdict)
    if verdict.delay:
        time.sleep(verdict.delay)
    return verdict
