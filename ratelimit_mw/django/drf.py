"""A throttle for Django REST framework: it decides where the framework does, knowing whom that has authenticated.

Rules for it stand in the settings with ``match = { scope = "uploads" }``: nothing but this throttle gives ``scope``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError
from ..http.pending import part_of
from ..marks import View
from ..switch import switch
from . import conf
from .current import Current, current_of
from .enforcer import Asked, Enforcer
from .request import SCOPE, of_django

__all__ = ["Throttle"]


class Throttle:
    """``throttle_classes = [Throttle]`` and ``throttle_scope = "uploads"`` on a view.

    A refusal here gives back what the middleware has spent for the request, so that together they are all or nothing.
    Raises ``ConfigError`` where no rule has the view's scope, ``MissingMiddlewareError`` without the middleware.
    """

    scope: str | None = None
    """For subclasses: the scope of all views that have this throttle, whatever they say themselves."""

    def __init__(self) -> None:
        self.verdict = Verdict((), ())

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the rules of the view's scope. What was refused before is not spent for again."""
        scope = self.scope or getattr(view, "throttle_scope", None)
        if scope is None or switch.off:
            return True
        django = request._request
        current = current_of(django)
        if current is None:
            raise MissingMiddlewareError(f"{type(view).__module__}.{type(view).__qualname__}")
        if not django.ratelimit:
            return True
        self.verdict = _decided(conf.enforcer(), current, request, scope)
        return self.verdict.allowed

    def wait(self) -> float | None:
        """Seconds until the same request would be allowed; None when waiting does not help."""
        return self.verdict.retry_after


def _decided(enforcer: Enforcer, current: Current, request: Any, scope: str) -> Verdict:
    made = of_django(request._request)
    made.user, made.throttle_scope = request.user, scope
    names = frozenset(rule.name for rule in enforcer.guard.rules.rules if scope in _scopes(rule.rule.matches.features))
    if not names:
        raise ConfigError(f"no rule of {conf.SETTING} has match = {{ scope = {scope!r} }}", of="throttle_scope")
    asked = Asked(made, View(), part_of(enforcer.guard.plan(made), names))
    verdict = enforcer.limiter.decide(asked.plan, enforcer.guard.reader.of(asked.plan, made), request=asked.django)
    if not verdict:
        for pending in current.pending:
            enforcer.limiter.refund(pending.verdict)
    enforcer.note(asked, verdict, current)
    if verdict.delay:
        time.sleep(verdict.delay)
    return verdict


def _scopes(features: Iterable[tuple[str, frozenset[str]]]) -> frozenset[str]:
    return next((values for name, values in features if name == SCOPE), frozenset())
