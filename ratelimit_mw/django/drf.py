"""Throttles for Django REST framework. They decide where the framework does, so they know the framework's user.

The rules of ``Throttle`` are in the settings, with ``match = { scope = "uploads" }``. The rates of the other throttles
are rules, too: they have the names, scopes and rates of those in ``rest_framework.throttling``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError, suggestion
from ..keys.features import INVALID, UNKNOWN_IP
from ..rules.marks import ViewMarks
from ..rules.names import name_of
from ..rules.plan import Plan
from ..testmode import testmode
from .admission import ATTRIBUTE, DjangoAdmission, resolve
from .drf_errors import api_error
from .limits import rules_of
from .request import SCOPE, THROTTLE, keep_data, user_key
from .throttles import mark_of

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "Throttle", "UserRateThrottle"]

_RATES: Final = 'REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]'
_NEVER_CALLED: Final = (
    "get_rate",
    "parse_rate",
    "throttle_success",
    "throttle_failure",
    "THROTTLE_RATES",
    "scope_attr",
)


class Throttle(BaseThrottle):  # type: ignore[misc] # REST framework has no types
    """Limit the views of REST framework by the rules of their scope.

    All throttles of a view are decided together: a request that one of them rejects consumes nothing from the others.
    The costs of the middleware stay consumed. A deny list gives 403, an unreachable store 503. ``@exempt``
    applies here too.

    Raises:
        ConfigError: No rule has the scope of the view.
        MissingMiddlewareError: ``MIDDLEWARE`` does not list ``RateLimitMiddleware``.

    Example:
        class Uploads(APIView):
            throttle_classes = [Throttle]
            throttle_scope = "uploads"
    """

    has_rate: ClassVar = False
    scope: str | None = None
    """The scope of all views with this throttle. Set it in a subclass; it overrides ``throttle_scope``."""
    verdict = Verdict()

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide all throttles of the view at its first throttle. One with its own ``allow_request`` decides alone.

        Args:
            request: The request of REST framework.
            view: The view. Its ``throttle_scope`` is the scope, unless this throttle has one.

        Returns:
            Whether the request is allowed.
        """
        if testmode.off or self.scope_of(view) is None:
            return True
        keep_data(request)
        admission: DjangoAdmission | None = getattr(request._request, ATTRIBUTE, None)
        if admission is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        decided = admission.throttles.get(view)
        if decided is None or type(self) not in decided:
            group = [self] if decided is not None else self._group_of(view)
            plans = [plan for throttle in group if (plan := throttle.plan_for(admission, request, view))]
            verdict = admission.throttle(plans)
            decided = dict.fromkeys(map(type, group), verdict)
            if group != [self]:
                admission.throttles[view] = decided
        self.verdict = decided.pop(type(self))
        if self.verdict.status in (403, 503):
            raise api_error(self.verdict)
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after

    def scope_of(self, view: Any) -> str | None:
        """Return the scope for a view; None where the throttle does not apply. Internal.

        Args:
            view: The view.
        """
        return self.scope or getattr(view, "throttle_scope", None)

    def plan_for(self, admission: DjangoAdmission, request: Any, view: Any) -> tuple[Plan, Mapping[str, Any]] | None:
        """Return the plan to decide, and its features; None where the throttle does not apply. Internal.

        Args:
            admission: The admission of the request.
            request: The request of REST framework.
            view: The view.
        """
        scope, limits, earlier = self.scope_of(view), admission.limits, admission.request
        if scope is None:
            return None
        names, plan = rules_of(limits.rules, scope, type(view)), limits.plan(earlier, earlier.to)
        others = tuple(rule.name for rule in plan.rules if rule.name not in names)
        return limits.plan_without(plan, others), {SCOPE: scope}

    def _group_of(self, view: Any) -> list["Throttle"]:
        """Return the throttles of a view that are decided together with this one."""
        throttles = [each for each in view.get_throttles() if isinstance(each, Throttle)]
        group = [each for each in throttles if type(each).allow_request is Throttle.allow_request]
        return group if type(self) in map(type, group) else [self]


class UserRateThrottle(Throttle):
    """Limit users, and clients that are not signed in by IP address. The scope is ``user``.

    A subclass may set ``scope`` and ``rate``, and return its own key from ``get_cache_key``. Without ``rate``, the rate
    is that of the scope in ``DEFAULT_THROTTLE_RATES``.

    Raises:
        ConfigError: There is no rate for the scope, or the rate cannot be parsed.

    Example:
        class Signups(UserRateThrottle):
            scope = "signups"

            def get_cache_key(self, request, view):
                return request.data.get("company")
    """

    has_rate: ClassVar = True
    scope = "user"
    rate: str | None = None
    cache_format = "throttle_%(scope)s_%(ident)s"
    """A format for your own ``get_cache_key``."""

    def __init_subclass__(cls) -> None:
        if unused := [name for name in _NEVER_CALLED if name in vars(cls)]:
            problem = f"{', '.join(unused)} would have no effect. A rate is a rule: set rate, or {_RATES}"
            raise ConfigError(problem, of=name_of(cls) or "")

    @classmethod
    def rate_of(cls, scope: str) -> Any:
        """Return the rate for a scope; None does not limit. Internal.

        Args:
            scope: The scope of this throttle, or of its view.

        Raises:
            ConfigError: There is no rate for the scope.
        """
        rates = api_settings.DEFAULT_THROTTLE_RATES
        if cls.rate is None and scope not in rates:
            raise ConfigError(f"no rate for the scope {scope!r}{suggestion(scope, rates)}", _RATES, name_of(cls) or "")
        return cls.rate or rates[scope]

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return the key of the client, whose text is counted. None does not limit the request.

        Args:
            request: The request of REST framework.
            view: The view.
        """
        user = user_key(request.user)
        return f"ip:{self.get_ident(request)}" if user is None else f"user:{user}"

    def get_ident(self, request: Any) -> str:
        """Return the client IP address: the feature ``ip``, which a client cannot forge.

        Args:
            request: The request of REST framework.
        """
        admission: DjangoAdmission = getattr(request._request, ATTRIBUTE)
        address: Any = resolve(admission.limits.reader.value("ip", admission.request))
        return UNKNOWN_IP if not address else "invalid" if address is INVALID else str(address)

    def plan_for(self, admission: DjangoAdmission, request: Any, view: Any) -> tuple[Plan, Mapping[str, Any]] | None:
        """Return the plan of the rate, and its features. Internal.

        Args:
            admission: The admission of the request.
            request: The request of REST framework.
            view: The view.
        """
        scope = self.scope_of(view)
        mark = None if scope is None else mark_of(admission.limits.limiter, type(self), scope)
        if mark is None or (key := self.get_cache_key(request, view)) is None:
            return None
        if mark not in admission.limits.rules.marks:  # only ``get_throttles`` of the view has named the throttle
            owner = admission.limits.owner
            owner.adopt([ViewMarks((mark,))])
            admission.limits = owner.in_force
        earlier = admission.request
        plan = admission.limits.rules.plan_of([mark], earlier.method, earlier.host, earlier.marks, admission.lists)
        own = None if type(self).get_cache_key in _KEYS else str(key)
        return plan, {THROTTLE: own, "user": user_key(request.user)}


class AnonRateThrottle(UserRateThrottle):
    """Limit clients that are not signed in, by IP address. The scope is ``anon``."""

    scope = "anon"

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return the key of a client that is not signed in; None for a user.

        Args:
            request: The request of REST framework.
            view: The view.
        """
        return None if user_key(request.user) else super().get_cache_key(request, view)


class ScopedRateThrottle(UserRateThrottle):
    """Limit the views with a ``throttle_scope`` by the rate of this scope, as ``UserRateThrottle`` does."""

    scope = None  # type: ignore[assignment] # that of the view


_KEYS: Final = {UserRateThrottle.get_cache_key, AnonRateThrottle.get_cache_key}
