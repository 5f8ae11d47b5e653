"""Throttles for Django REST framework. They decide where the framework does, so they know the framework's user.

The rules of ``Throttle`` are in the settings, with ``match = { scope = "uploads" }``. The rates of the other throttles
are rules, too, made at the start. They have the names, scopes and rates of those in ``rest_framework.throttling``.
"""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final

from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..decision import Hit, Verdict
from ..errors import ConfigError, MissingMiddlewareError, error_of, error_path, suggestion
from ..keys.features import INVALID, UNKNOWN_IP, Features
from ..quota import Quota
from ..rules.marks import Mark
from ..rules.names import class_behind, name_of
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..testmode import testmode
from .drf_errors import api_error
from .limits import rules_by_scope
from .request import ATTRIBUTE, SCOPE, THROTTLE, DjangoAdmission, keep_data, resolve, user_key
from .routes import DjangoRoute

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "Throttle", "UserRateThrottle"]

_RATES: Final = 'REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]'
_KEY: Final = [f"{THROTTLE} as raw|user|ip"]
_NEVER_CALLED: Final = (
    "get_rate",
    "parse_rate",
    "throttle_success",
    "throttle_failure",
    "THROTTLE_RATES",
    "scope_attr",
)
_DECIDED: Final = "_ratelimit_mw_throttles"
"""The attribute of REST framework's request with the verdicts for the throttles that it has not asked yet."""
_PROVIDED: Final = "throttles"
"""The entry of the features with those that each of several throttles provides."""

_Asked = tuple[Plan, Mapping[str, Any]]
"""The decision of a throttle: a plan, and the features that only the throttle knows."""


class RateMark(Mark):
    """The rate of a scope. A throttle decides it, and not the middleware."""

    source = "throttle"


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
        if testmode.off or _scope_of(self, view) is None:
            return True
        keep_data(request)
        if getattr(request._request, ATTRIBUTE, None) is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        decided = vars(request).get(_DECIDED)
        if decided is None:
            decided = vars(request)[_DECIDED] = _decide(self._group_of(view), request, view)
        elif type(self) not in decided:  # it is asked again
            decided |= _decide([self], request, view)
        self.verdict = decided.pop(type(self))
        if self.verdict.status in (403, 503):
            raise api_error(self.verdict)
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after

    def _ask(self, admission: DjangoAdmission, scope: str, request: Any, view: Any) -> _Asked | None:
        """Return what to decide; None where the throttle does not apply."""
        limits, earlier = admission.limits, admission.request
        names, plan = rules_of_scope(limits.rules, scope, type(view)), limits.plan(earlier, earlier.to)
        others = tuple(rule.name for rule in plan.rules if rule.name not in names)
        return limits.plan_without(plan, others), {SCOPE: scope}

    def _group_of(self, view: Any) -> list["Throttle"]:
        """Return the throttles of a view that are decided together with this one."""
        group = [each for each in view.get_throttles() if type(each).allow_request is Throttle.allow_request]
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

    scope = "user"
    rate: str | None = None
    cache_format = "throttle_%(scope)s_%(ident)s"
    """A format for your own ``get_cache_key``."""

    def __init_subclass__(cls) -> None:
        if unused := [name for name in _NEVER_CALLED if name in vars(cls)]:
            problem = f"{', '.join(unused)} would have no effect. A rate is a rule: set rate, or {_RATES}"
            raise ConfigError(problem, of=name_of(cls) or "")

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

    def _ask(self, admission: DjangoAdmission, scope: str, request: Any, view: Any) -> _Asked | None:
        mark, rules, earlier = _mark_of(type(self), scope), admission.limits.rules, admission.request
        if mark is None or (key := self.get_cache_key(request, view)) is None:
            return None
        if mark not in rules.marks:  # only ``get_throttles`` of the view has named the throttle
            fix = f"Name the throttle in throttle_classes of a view, or set the rate of its scope in {_RATES}"
            raise ConfigError(f"the rate is not known at the start. {fix}", "rate", name_of(type(self)) or "")
        plan = rules.plan_of([mark], earlier.method, earlier.host, earlier.to.marks, admission.lists)
        custom = None if type(self).get_cache_key in _DEFAULT_KEYS else str(key)
        return plan, {THROTTLE: custom, "user": user_key(request.user)}


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


_DEFAULT_KEYS: Final = {UserRateThrottle.get_cache_key, AnonRateThrottle.get_cache_key}


def _decide(group: Sequence[Throttle], request: Any, view: Any) -> dict[type, Verdict]:
    """Return the verdict for each throttle of a group, which is one for all: a rejected request consumes nothing."""
    admission: DjangoAdmission = getattr(request._request, ATTRIBUTE)
    scopes = ((throttle, _scope_of(throttle, view)) for throttle in group)
    asked = [throttle._ask(admission, scope, request, view) for throttle, scope in scopes if scope is not None]
    verdict = Verdict()
    if each := [one for one in asked if one is not None]:
        admission.request.may_await = False  # from here on, the user is that of REST framework
        verdict = admission.decide(*(each[0] if len(each) == 1 else _join(each)))
    return dict.fromkeys(map(type, group), verdict)


def _join(asked: Sequence[_Asked]) -> _Asked:
    """Return one plan for several throttles, each of which provides features of its own."""
    plans, provided = zip(*asked, strict=True)
    common = set.intersection(*map(set, provided))
    return _joint_plan(plans), {**dict.fromkeys(common), _PROVIDED: provided}


class _JointPlan(Plan):
    """The rules of several throttles, which one step of the store decides. A limit counts once under each key."""

    def __init__(self, plans: tuple[Plan, ...]) -> None:
        super().__init__(list(dict.fromkeys(rule for plan in plans for rule in plan.rules)), plans[0].lists)
        self._plans = plans
        self.plain, self.alone = (), None

    def hits(self, features: Features, *others: Any) -> Any:
        hits: list[Hit] = []
        for plan, provided in zip(self._plans, features[_PROVIDED], strict=True):
            built = plan.hits({**features, **provided}, *others)
            if not isinstance(built, list):
                return built
            hits += built
        return list(dict.fromkeys(hits))


_joint_plan: Final = lru_cache(1024)(_JointPlan)


# -- at the start ------------------------------------------------------------------------------------------------------


def default_marks() -> list[RateMark]:
    """Return the marks of all rates in the settings. Those that cannot work may be of another package."""
    marks: list[RateMark] = []
    for scope in api_settings.DEFAULT_THROTTLE_RATES or ():
        with suppress(ConfigError):
            marks += filter(None, [_mark_of(UserRateThrottle, scope)])
    return marks


def marks_of_view(callback: Any) -> list[RateMark]:
    """Return the marks of the rates on a view. Raises ``ConfigError`` for a scope without a rate."""
    rated = [(kind, scope) for kind, scope in _throttles_of(callback) if issubclass(kind, UserRateThrottle)]
    return [mark for kind, scope in rated if (mark := _mark_of(kind, scope))]


def scopes_of_view(callback: Any) -> list[str]:
    """Return the scopes of ``Throttle`` on a view, whose rules are in the settings."""
    return [scope for kind, scope in _throttles_of(callback) if not issubclass(kind, UserRateThrottle)]


def check_scopes(routes: Iterable[DjangoRoute], rules: RuleSet) -> None:
    """Raise ``ConfigError`` for a ``Throttle`` on a view without any rule of its scope."""
    for route in routes:
        for scope in scopes_of_view(route.callback):
            rules_of_scope(rules, scope, class_behind(route.callback))


def rules_of_scope(rules: RuleSet, scope: str, view: type | None) -> Collection[str]:
    """Return the names of the rules for throttles of this scope. Raises ``ConfigError`` without any."""
    names = rules_by_scope(rules).get(scope)
    if names is None:
        where = f"the throttle of {getattr(view, '__module__', '')}.{getattr(view, '__qualname__', '')}"
        raise ConfigError(f"no rule of RATELIMIT_MW has match = {{ scope = {scope!r} }}", of=where)
    return names


def _throttles_of(callback: Any) -> Iterator[tuple[type[Throttle], str]]:
    """Yield the throttles of this package on a view, with their scopes."""
    initkwargs, cls = getattr(callback, "initkwargs", {}), class_behind(callback)
    of_view = initkwargs.get("throttle_scope", getattr(cls, "throttle_scope", None))
    for throttle in initkwargs.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        if inspect.isclass(throttle) and issubclass(throttle, Throttle) and (scope := throttle.scope or of_view):
            yield throttle, scope


def _scope_of(throttle: Throttle, view: Any) -> str | None:
    return throttle.scope or getattr(view, "throttle_scope", None)


def _mark_of(throttle: type[UserRateThrottle], scope: str) -> RateMark | None:
    """Return the mark for the rate of a throttle; None where the rate is None, which does not limit.

    Raises ``ConfigError`` for a rate that cannot work, and for a scope without one.
    """
    rates, name = api_settings.DEFAULT_THROTTLE_RATES, name_of(throttle) or ""
    if throttle.rate is None and scope not in rates:
        raise ConfigError(f"no rate for the scope {scope!r}{suggestion(scope, rates)}", _RATES, name)
    rate = throttle.rate or rates[scope]
    with error_of(name), error_path("rate"):
        return None if rate is None else _mark(scope, Quota.parse(rate))


@cache
def _mark(scope: str, rate: Quota) -> RateMark:
    """Return the one mark of a scope with this rate: two throttles with both share a count."""
    return RateMark(Rule(limits=rate, key=_KEY), scope)
