"""Rate limiting for Flask: the extension ``RateLimiter``, the decorators ``limit`` and ``exempt``, ``dashboard()``."""

from operator import attrgetter
from typing import Any

import flask

from ..decision import Verdict
from ..http.in_view import Asked, in_threads, verdict_of
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .extension import RateLimiter

__all__ = ["RateLimiter", "check", "dashboard", "exempt", "limit", "usage", "verdict"]


def _ask_rule(rule: str, /, **features: Any) -> Asked:
    return flask.request, (rule,), features


def _ask_rules(*rules: str, **features: Any) -> Asked:
    return flask.request, rules, features


check, usage = in_threads(_ask_rule, _ask_rules, attrgetter("environ"))


def verdict() -> Verdict:
    """Return the verdict of the extension on the current request, with what your view has decided since.

    Returns:
        The verdict. It has no decisions when no rule applies, or while limits are off.

    Raises:
        MissingMiddlewareError: No ``RateLimiter`` handles the request.

    Example:
        verdict()["tokens"].settle(150)
    """
    return verdict_of(flask.request.environ)
