"""Throttles for Django REST framework. They decide where the framework does, so they know the framework's user.

The rules of ``Throttle`` are in the settings, with ``match = { scope = "uploads" }``. The other throttles have the
names, scopes and rates of those in ``rest_framework.throttling``, and the limiter decides them.
"""

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any, Final

from rest_framework import throttling
from rest_framework.settings import api_settings

from ..algorithms.limit import Limit
from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError, suggestion
from ..keys.features import INVALID, UNKNOWN_IP
from ..quota import Quota
from ..rules.compiled import CompiledRule
from ..rules.names import name_of
from ..rules.plan import Plan
from ..testmode import testmode
from .admission import DjangoAdmission, resolve
from .direct import admission_of
from .drf_errors import api_error
from .limits import project_limits, rules_of
from .request import SCOPE, THROTTLE, DjangoRequest, user_key
from .throttles import RATES, mark_of, quota_of

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "Throttle", "UserRateThrottle"]


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
        """Decide the rules of the view's scope. If the view rejects the request, all its throttles are refunded.

        Args:
            request: The request of REST framework.
            view: The view. Its ``throttle_scope`` is the scope, unless this throttle has one.

        Returns:
            Whether the request is allowed.
        """
        scope = self.scope or getattr(view, "throttle_scope", None)
        if scope is None or testmode.off:
            return True
        admission = admission_of(request)
        if admission is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        limits, earlier = admission.limits, admission.request
        names, plan = rules_of(limits.rules, scope, type(view)), limits.plan(earlier, earlier.to)
        plan = limits.plan_without(plan, tuple(rule.name for rule in plan.rules if rule.name not in names))
        self.verdict = _decide(admission, plan, request, {SCOPE: scope}, view)
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after


class _LiveRates:
    """The rates of the settings as they are now: tests override them."""

    def __get__(self, throttle: object, cls: type) -> Any:
        return api_settings.DEFAULT_THROTTLE_RATES


class SimpleRateThrottle(throttling.SimpleRateThrottle):  # type: ignore[misc] # REST framework has no types
    """Limit by the rate of a scope in ``DEFAULT_THROTTLE_RATES``, or by a ``rate``, per ``get_cache_key``.

    Raises:
        ConfigError: The rate cannot be parsed.
        ImproperlyConfigured: There is no rate for the scope.

    Example:
        class Signups(SimpleRateThrottle):
            scope = "signups"

            def get_cache_key(self, request, view):
                return request.data.get("company")
    """

    THROTTLE_RATES: Any = _LiveRates()
    verdict = Verdict()

    @classmethod
    def declared(cls, view_scope: str | None) -> tuple[str, Quota] | None:
        """Return the name and the rate for a view, unless code of a subclass decides the rate. Internal.

        Args:
            view_scope: The ``throttle_scope`` of the view.

        Raises:
            ConfigError: There is no rate for the scope, or the rate cannot be parsed.
        """
        parts = (getattr(cls, name) for name in ("__init__", "get_rate", "parse_rate", "allow_request"))
        if not all(part.__module__.startswith(_PACKAGES) for part in parts):
            return None
        scope = view_scope if issubclass(cls, throttling.ScopedRateThrottle) else cls.scope
        if issubclass(cls, throttling.ScopedRateThrottle) and not scope:
            return None
        own, rates = getattr(cls, "rate", None), cls.THROTTLE_RATES
        if any(isinstance(part, property) for part in (own, rates, scope)):
            return None
        if not own and scope not in rates:
            raise ConfigError(f"no rate for the scope {scope!r}{suggestion(scope, rates)}", RATES, name_of(cls) or "")
        rate = own or rates[scope]
        name = name_of(cls) or ""
        return None if rate is None else (scope or name, quota_of(rate, name))

    def parse_rate(self, rate: str | None) -> tuple[int | None, float | None]:
        """Return the amount and the seconds of a rate; None for both without a rate.

        Args:
            rate: A quota such as ``"5/minute"`` or ``"5/15m"``.

        Raises:
            ConfigError: The rate cannot be parsed.
        """
        if rate is None:
            return None, None
        quota = quota_of(rate, name_of(type(self)) or "")
        return quota.amount, quota.period

    def get_ident(self, request: Any) -> str:
        """Return the client IP address: the feature ``ip``, or by ``NUM_PROXIES`` without ``trusted_proxies``.

        Args:
            request: The request of REST framework.
        """
        limits = project_limits().limits.in_force
        address: Any = None
        if api_settings.NUM_PROXIES and not limits.settings.trusted_proxies:
            address = limits.reader.address(super().get_ident(request) or "")
        if address is None:
            native = getattr(request, "_request", request)
            address = resolve(limits.reader.value("ip", DjangoRequest(native)))
        return UNKNOWN_IP if not address else "invalid" if address is INVALID else str(address)

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the rate. If the view rejects the request, all its throttles are refunded.

        Args:
            request: The request of REST framework.
            view: The view.

        Returns:
            Whether the request is allowed.
        """
        if self.rate is None or testmode.off or (key := self.get_cache_key(request, view)) is None:
            return True
        own = str(key) if type(self).get_cache_key not in _KEYS_OF_FRAMEWORK else None
        features = {THROTTLE: own, "user": user_key(request.user), "ip": self.get_ident(request)}
        quota = Quota(ceil(self.num_requests), self.duration)
        self.verdict = _decide_rate(request, self.scope or name_of(type(self)) or "", quota, features, view)
        return bool(self.throttle_success() if self.verdict else self.throttle_failure())

    def throttle_success(self) -> bool:
        """Return True. The limiter has counted the request."""
        return True

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limit clients that are not signed in, by IP address. The scope is ``anon``."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limit users, and clients that are not signed in by IP address. The scope is ``user``."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limit the views with a ``throttle_scope`` by the rate of this scope, as ``UserRateThrottle`` does."""


class _Throttled:
    """The method ``throttled`` of a view. When it raises, and only then, the throttles have rejected the request."""

    def __init__(self, view: Any, throttled: Callable[[Any, float | None], Any]) -> None:
        self._view = view
        self._throttled = throttled

    def __call__(self, request: Any, wait: float | None) -> Any:
        try:
            return self._throttled(request, wait)
        except Exception:
            admission: Any = admission_of(request, may_be_direct=True)
            admission.reject(self._view, wait)
            raise


_KEYS_OF_FRAMEWORK: Final = {
    cls.get_cache_key
    for cls in (throttling.AnonRateThrottle, throttling.UserRateThrottle, throttling.ScopedRateThrottle)
}
_PACKAGES: Final = ("rest_framework.", "ratelimit_mw.")


def _decide_rate(request: Any, name: str, quota: Quota, features: Mapping[str, Any], view: Any) -> Verdict:
    admission: Any = admission_of(request, may_be_direct=True)
    mark = mark_of(admission.limits.limiter, name, quota)
    _, admission.limits = admission.limits.with_called([mark])
    earlier, rules = admission.request, admission.limits.rules
    plan = rules.plan_of([mark], earlier.method, earlier.host, earlier.marks, admission.lists)
    rule = rules.rule_of(mark)
    if plan.rules and quota != mark.rule.limits and rule.source.limits == mark.rule.limits:
        plan = _plan_with(rule.parse((quota,)), rule, plan)
    return _decide(admission, plan, request, features, view)


@lru_cache(1024)
def _plan_with(limits: tuple[Limit, ...], rule: CompiledRule, plan: Plan) -> Plan:
    return Plan([rule.with_limits(limits)], plan.lists)


def _decide(admission: DjangoAdmission, plan: Plan, throttled: Any, features: Mapping[str, Any], view: Any) -> Verdict:
    earlier, _ = admission.request, throttled.user  # which gives Django's request the user, too
    request = DjangoRequest(throttled._request).at_place_of(earlier)  # anew, because the body may have been read since
    request.first = earlier
    verdict = admission.throttle(plan, request, features, view)
    if hasattr(view, "throttled") and not isinstance(view.throttled, _Throttled):
        view.throttled = _Throttled(view, view.throttled)
    if verdict.status in (403, 503):
        admission.reject(view, None)
        raise api_error(verdict)
    if verdict.delay:
        time.sleep(verdict.delay)
    return verdict
