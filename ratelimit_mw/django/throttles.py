"""The throttles of views of REST framework. A rate is a rule with the name of its scope.

This module does not import the framework.
"""

from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..errors import ConfigError
from ..limiter.limiter import Limiter
from ..quota import Quota
from ..rules.marks import Mark
from ..rules.names import class_behind, name_of
from ..rules.rule import Rule
from .request import THROTTLE

_KEY: Final = [f"{THROTTLE} as raw|user|ip"]


class ThrottleMark(Mark):
    """The rate of a scope. A throttle decides it, and not the middleware."""

    source = "throttle"


_marks: Final = WeakKeyDictionary[Limiter, dict[tuple[str, Quota], ThrottleMark]]()


def mark_of(limiter: Limiter, throttle: Any, scope: str) -> ThrottleMark | None:
    """Return the mark for the rate of a throttle class; None where the rate is None, which does not limit.

    Raises ``ConfigError`` for a rate that cannot work, and for a scope without one.
    """
    rate = throttle.rate_of(scope)
    if rate is None:
        return None
    quota = _quota_of(rate, name_of(throttle) or "")
    marks = _marks.setdefault(limiter, {})
    return marks.setdefault((scope, quota), ThrottleMark(Rule(limits=quota, key=_KEY), scope))


def _quota_of(rate: Any, throttle: str) -> Quota:
    try:
        quota = Quota.parse(rate)
    except ConfigError as error:
        raise ConfigError(error.message, "rate", throttle) from None
    if quota.concurrent or quota.burst:
        message = f'expected AMOUNT/PERIOD, for example "5/minute"; got {rate!r}. For others, use Throttle and a rule'
        raise ConfigError(message, "rate", throttle)
    return quota


def scopes_of(callback: Any) -> Iterator[str]:
    """Yield the scopes of ``Throttle`` on a view, whose rules are in the settings."""
    for throttle, scope in _throttles_of(callback):
        if not throttle.has_rate:
            yield scope


def rates_of(callback: Any, limiter: Limiter) -> Iterator[ThrottleMark]:
    """Yield the marks of the rates on a view. Raises ``ConfigError`` for a scope without a rate."""
    for throttle, scope in _throttles_of(callback):
        if throttle.has_rate and (mark := mark_of(limiter, throttle, scope)):
            yield mark


def _throttles_of(callback: Any) -> Iterator[tuple[Any, str]]:
    """Yield the throttles of this package on a view, with their scopes."""
    initkwargs, cls = getattr(callback, "initkwargs", {}), class_behind(callback)
    of_view = initkwargs.get("throttle_scope", getattr(cls, "throttle_scope", None))
    for throttle in initkwargs.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        if hasattr(throttle, "has_rate") and (scope := throttle.scope or of_view) is not None:
            yield throttle, scope
