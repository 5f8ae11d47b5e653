"""Throttles for Django REST framework. They decide where the framework does, so they know the framework's user.

A throttle decides the rules of its scope: those of the settings with ``match = { scope = "uploads" }``, and its rate in
``DEFAULT_THROTTLE_RATES``, which becomes a rule at the start.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final

from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError, error_of, error_path, suggestion
from ..http.routes import Route
from ..keys.features import INVALID, UNKNOWN_IP
from ..quota import Quota
from ..rules.compiled import CompiledRule
from ..rules.marks import Mark
from ..rules.names import class_behind, name_of
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..testmode import testmode
from .drf_errors import APIRejection
from .limits import rules_by_scope
from .request import ATTRIBUTE, SCOPE, DjangoAdmission, keep_data, user_key, wait_for

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
_DECIDED: Final = "_ratelimit_mw_throttles"
"""The attribute of REST framework's request with the verdicts for the throttles that it has not asked yet."""


class RateMark(Mark):
    """The rate of a scope. A throttle decides it, and not the middleware."""

    source = "throttle"


class Throttle(BaseThrottle):  # type: ignore[misc] # REST framework has no types
    """Limit the views of REST framework by the rules of their scope.

    All throttles of a view are decided together: a request that one of them rejects consumes nothing from the others.
    The costs of the middleware stay consumed. A deny list gives 403, an unreachable store 503. ``@exempt``
    applies here too. A rate counts users, and clients that are not signed in by IP address. A subclass may return its
    own key from ``get_cache_key``.

    Raises:
        ConfigError: There is no rule and no rate for the scope of the view, or the rate cannot be parsed.
        MissingMiddlewareError: ``MIDDLEWARE`` does not list ``RateLimitMiddleware``.

    Example:
        class Uploads(APIView):
            throttle_classes = [Throttle]
            throttle_scope = "uploads"
    """

    scope: str | None = None
    """The scope of all views with this throttle. Set it in a subclass; it overrides ``throttle_scope``."""
    rate: str | None = None
    """The rate of a subclass, instead of that in ``DEFAULT_THROTTLE_RATES``."""
    cache_format = "throttle_%(scope)s_%(ident)s"
    """A format for your own ``get_cache_key``."""
    verdict = Verdict()

    def __init_subclass__(cls) -> None:
        if unused := [name for name in _NEVER_CALLED if hasattr(cls, name)]:
            problem = f"{', '.join(unused)} would have no effect. A rate is a rule: set rate, or {_RATES}"
            raise ConfigError(problem, of=name_of(cls) or "")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide all throttles of the view at its first throttle. One with its own ``allow_request`` decides alone.

        Args:
            request: The request of REST framework.
            view: The view. Its ``throttle_scope`` is the scope, unless this throttle has one.

        Returns:
            Whether the request is allowed.

        Raises:
            MissingMiddlewareError: No middleware handles the request.
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
            raise APIRejection(self.verdict)
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after

    def _group_of(self, view: Any) -> list["Throttle"]:
        """Return the throttles of a view that are decided together with this one."""
        group = [each for each in view.get_throttles() if type(each).allow_request is Throttle.allow_request]
        return group if type(self) in map(type, group) else [self]

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return the key of the client, whose text the rate counts. None does not limit the request.

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
        address: Any = wait_for(admission.limits.reader.value("ip", admission.request))
        return UNKNOWN_IP if not address else "invalid" if address is INVALID else str(address)


class UserRateThrottle(Throttle):
    """Limit users, and clients that are not signed in by IP address. The scope is ``user``."""

    scope = "user"


class AnonRateThrottle(Throttle):
    """Limit clients that are not signed in, by IP address. The scope is ``anon``."""

    scope = "anon"

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return the key of a client that is not signed in; None for a user.

        Args:
            request: The request of REST framework.
            view: The view.
        """
        return None if user_key(request.user) else super().get_cache_key(request, view)


class ScopedRateThrottle(Throttle):
    """Limit the views with a ``throttle_scope``, as ``Throttle`` does."""


_DEFAULT_KEYS: Final = {Throttle.get_cache_key, AnonRateThrottle.get_cache_key}


def _decide(group: Iterable[Throttle], request: Any, view: Any) -> dict[type, Verdict]:
    """Return the verdict for each throttle of a group, which is one for all: a rejected request consumes nothing."""
    admission: DjangoAdmission = getattr(request._request, ATTRIBUTE)
    marks: list[RateMark] = []
    scopes: set[str] = set()
    given: dict[str, Any] = {}
    for each in group:
        kind, scope = type(each), _scope_of(each, view)
        if scope is None or (key := each.get_cache_key(request, view)) is None:
            continue
        if each.rate != kind.rate:
            problem = "it would have no effect on one throttle. Set it on the class"
            raise ConfigError(problem, "rate", name_of(kind) or "")
        scopes.add(scope)
        marks += _checked_rates(kind, scope, admission.limits.rules, type(view))
        own = _own_key(kind, scope)
        if own and given.setdefault(own, str(key)) != str(key):
            problem = "two throttles of the view have one scope and get_cache_key, but other keys"
            raise ConfigError(f"{problem}. Give each its own scope", "scope", name_of(kind) or "")
    verdict = Verdict()
    if scopes:
        # An invalid feature matches: of several scopes, each rule of the plan has one.
        given[SCOPE] = min(scopes) if len(scopes) == 1 else INVALID
        admission.request.may_await = False  # from here on, the user is that of REST framework
        verdict = admission.decide(_plan_of(scopes, marks, admission), given)
    return dict.fromkeys(map(type, group), verdict)


def _plan_of(scopes: Iterable[str], marks: Iterable[RateMark], admission: DjangoAdmission) -> Plan:
    """Return the plan of these rates, and of those rules of the scopes that apply to the request."""
    limits, request = admission.limits, admission.request
    plan, by_scope = limits.rules.plan_for_request(request), rules_by_scope(limits.rules)
    names = {name for scope in scopes for name in by_scope.get(scope, ())}
    rates = limits.rules.plan_for_marks(marks, request.method, request.host, request.to.marks, admission.lists)
    of_scopes = [rule for rule in plan.rules if rule.name in names]
    return _plan(plan, (*of_scopes, *rates.rules))


@lru_cache(1024)
def _plan(of_request: Plan, rules: tuple[CompiledRule, ...]) -> Plan:
    return Plan(rules, of_request.lists)


def _rates() -> Mapping[str, Any]:
    """Return the rates that the project has set. The default of REST framework is None, no limit, for two scopes."""
    return api_settings.user_settings.get("DEFAULT_THROTTLE_RATES") or {}


def default_marks() -> list[RateMark]:
    """Return the marks of all rates in the settings. Those that cannot work may be of another package."""
    marks: list[RateMark] = []
    for scope in _rates():
        with suppress(ConfigError):
            marks += rates_of(Throttle, scope)
    return marks


def check_scopes(routes: Iterable[Route], rules: RuleSet) -> None:
    """Raise ``ConfigError`` for a throttle on a view without any rule of its scope, and for a key with the scope."""
    for rule in rules.rules:
        if any(part.feature == SCOPE for entry in rule.source.entries for part in entry):
            raise rule.error("a scope is no part of a key. Write a rule for each scope", "key")
    for route in routes:
        for kind, scope in throttles_of(route.target):
            _checked_rates(kind, scope, rules, class_behind(route.target))


def _checked_rates(kind: type[Throttle], scope: str, rules: RuleSet, view: type | None) -> list[RateMark]:
    """Return the rate of a throttle. Raises ``ConfigError`` where its scope has no rate and no rule, or a late rate."""
    rates, by_scope = _rates(), rules_by_scope(rules)
    if kind.rate is None and scope not in rates and scope not in by_scope:
        where = f"the throttle of {getattr(view, '__module__', '')}.{getattr(view, '__qualname__', '')}"
        problem = f"no rule of RATELIMIT_MW has match = {{ scope = {scope!r} }}, and {_RATES} has no such scope"
        raise ConfigError(f"{problem}{suggestion(scope, [*rates, *by_scope])}", of=where)
    marks = rates_of(kind, scope)
    for mark in marks:
        if mark not in rules.marks:  # only ``get_throttles`` of the view has named the throttle
            fix = f"Name the throttle in throttle_classes of a view, or set the rate of its scope in {_RATES}"
            raise ConfigError(f"the rate is not known at the start. {fix}", "rate", mark.view)
    return marks


def throttles_of(callback: Any) -> Iterator[tuple[type[Throttle], str]]:
    """Yield the throttles of this package on a view, with their scopes."""
    initkwargs, cls = getattr(callback, "initkwargs", {}), class_behind(callback)
    of_view = initkwargs.get("throttle_scope", getattr(cls, "throttle_scope", None))
    for throttle in initkwargs.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        if inspect.isclass(throttle) and issubclass(throttle, Throttle) and (scope := throttle.scope or of_view):
            yield throttle, scope


def _scope_of(throttle: Throttle, view: Any) -> str | None:
    return throttle.scope or getattr(view, "throttle_scope", None)


def rates_of(kind: type[Throttle], scope: str) -> list[RateMark]:
    """Return the mark for the rate of a throttle; none without a rate. Raises ``ConfigError`` for an invalid one."""
    rate = kind.rate or _rates().get(scope)
    key = _own_key(kind, scope)
    with error_of(name_of(kind) or ""):
        if rate is None and key and scope not in _rates():
            raise ConfigError("its own key is that of a rate, and there is none. Write a rule with this key")
        with error_path("rate"):
            return [] if rate is None else [_mark(scope, Quota.parse(rate), key)]


@cache
def _mark(scope: str, rate: Quota, key: str) -> RateMark:
    """Return the one mark of a scope with this rate and key: two throttles with all of them share a count."""
    return RateMark(Rule(limits=rate, key=[f"{key} as raw" if key else "user|ip"]), scope)


def own_keys(routes: Iterable[Route]) -> set[str]:
    """Return the features with the keys of the throttles that make their own."""
    return {key for route in routes for kind, scope in throttles_of(route.target) if (key := _own_key(kind, scope))}


def _own_key(kind: type[Throttle], scope: str) -> str:
    """Return the feature with the key of a subclass that has its own ``get_cache_key`` or ``get_ident``; else "".

    Throttles of several scopes may inherit one of these methods, which returns another key for each.
    """
    method: Any = kind.get_ident if kind.get_cache_key in _DEFAULT_KEYS else kind.get_cache_key
    if method is Throttle.get_ident:
        return ""
    name = f"throttle_{scope}_{method.__module__}_{method.__qualname__.removesuffix('.get_cache_key')}"
    return re.sub(r"\W", "_", name.lower(), flags=re.ASCII)
