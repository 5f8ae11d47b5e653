"""The throttles of views of REST framework, as far as their classes show, and the marks of their rates.

Rates are rules with the name of their scope. The limiter counts all throttles of one scope together, as REST framework
does. This module does not import the framework.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..errors import ConfigError
from ..limiter.limiter import Limiter
from ..quota import Quota
from ..rules.marks import Mark
from ..rules.names import class_behind
from ..rules.rule import Rule
from .request import THROTTLE

RATES: Final = 'REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]'
_MAX_SCOPES: Final = 1000
_KEY: Final = [f"{THROTTLE} as raw|user|ip"]


class ThrottleMark(Mark):
    """The rate of a scope. A throttle decides it, and not the middleware."""

    source = "throttle"


_marks: Final = WeakKeyDictionary[Limiter, dict[str, ThrottleMark]]()


def mark_of(limiter: Limiter, scope: str, quota: Quota) -> ThrottleMark:
    """Return the mark of a scope, whose rate was known first as this quota."""
    marks = _marks.setdefault(limiter, {})
    if scope not in marks and len(marks) >= _MAX_SCOPES:
        raise ConfigError(f"more than {_MAX_SCOPES} scopes. Put values of requests into get_cache_key", "scope")
    return marks.get(scope) or marks.setdefault(scope, ThrottleMark(Rule(limits=quota, key=_KEY), scope))


def quota_of(rate: Any, throttle: str) -> Quota:
    """Return the quota of a rate. Raises ``ConfigError`` for a rate that a throttle cannot have."""
    try:
        quota = _parse(rate) if isinstance(rate, str) else Quota.parse(rate)
    except ConfigError as error:
        raise ConfigError(error.message, "rate", throttle) from None
    if quota.concurrent or quota.burst:
        message = f'expected AMOUNT/PERIOD, for example "5/minute"; got {rate!r}. For others, use Throttle and a rule'
        raise ConfigError(message, "rate", throttle)
    return quota


_parse: Final = lru_cache(1024)(Quota.parse)


def scopes_of(callback: Any) -> Iterator[str]:
    """Yield the scopes of ``Throttle`` on a view."""
    for throttle, scope in _throttles_of(callback):
        if getattr(throttle, "decides_scope", False) and (scope := throttle.scope or scope) is not None:
            yield scope


def rates_of(callback: Any, limiter: Limiter) -> Iterator[ThrottleMark]:
    """Yield the marks of the rates on a view. Raises ``ConfigError`` for a scope without a rate."""
    for throttle, scope in _throttles_of(callback):
        declared = getattr(throttle, "declared", None)
        if declared is not None and (rate := declared(scope)):
            yield mark_of(limiter, *rate)


def _throttles_of(callback: Any) -> Iterator[tuple[Any, str | None]]:
    initkwargs, cls = getattr(callback, "initkwargs", {}), class_behind(callback)
    for throttle in initkwargs.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        name = getattr(throttle, "scope_attr", "throttle_scope")
        yield throttle, initkwargs.get(name, getattr(cls, name, None))
