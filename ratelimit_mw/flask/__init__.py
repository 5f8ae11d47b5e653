"""Rate limiting for Flask: the extension ``RateLimiter``, the decorators ``limit`` and ``exempt``, ``dashboard()``."""

from typing import Any

import flask

from ..http.in_view import NO_STORE, Asked, in_threads
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .extension import RateLimiter

__all__ = ["RateLimiter", "check", "dashboard", "exempt", "limit", "usage"]


def _find_rule(rule: str, /, **features: Any) -> Asked:
    return flask.request.environ, (rule,), features


def _find_rules(*rules: str, **features: Any) -> Asked:
    return flask.request.environ, rules, features


check, usage = in_threads((_find_rule, _find_rules), lambda found: (found, NO_STORE))
