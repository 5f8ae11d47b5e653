"""Rate limiting for Flask: the extension ``RateLimiter``, the decorators ``limit`` and ``exempt``, ``dashboard()``."""

from operator import attrgetter
from typing import Any

import flask

from ..http.in_view import Asked, in_threads, verdict_by
from ..rules.decorators import exempt, limit
from .dashboard import dashboard
from .extension import RateLimiter

__all__ = ["RateLimiter", "check", "dashboard", "exempt", "limit", "usage", "verdict"]


def _ask_rule(rule: str, /, **features: Any) -> Asked:
    return flask.request, (rule,), features


def _ask_rules(*rules: str, **features: Any) -> Asked:
    return flask.request, rules, features


_environ_of = attrgetter("environ")
check, usage = in_threads(_ask_rule, _ask_rules, _environ_of)
verdict = verdict_by(lambda: (flask.request, (), {}), _environ_of)
