"""Limits on FastAPI dependencies: those that apply on the way to the view, after the first decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import adecide
from ..rules.marks import Mark
from .request import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from .middleware import ASGIAdmission

_KEY: Final = "ratelimit_mw.dependencies"
"""The key of the scope that holds the ``DependencyDecisions`` of the request."""
_ERROR: Final = 500


class DependencyLimit:
    """A limit that a dependency carries. Objects with the same mark are one limit.

    ``provides`` has the dependencies of features. Without any, the limit is decided before dependencies are called.
    """

    def __init__(self, mark: Mark, provides: Mapping[str, object]) -> None:
        self.mark = mark
        self.provides = provides


class DependencyDecisions:
    """Decides the dependency limits of one request. The scope keeps it for them."""

    def __init__(self, admission: ASGIAdmission) -> None:
        self._admission = admission
        self._first = admission.verdict
        self._decided: dict[Mark, Verdict] = {}
        admission.native[_KEY] = self

    async def decide(self, limit: DependencyLimit, provided: Mapping[str, Any]) -> Verdict:
        """Return the verdict on a limit, which is decided once.

        Raises ``RateLimitExceeded`` when it rejects. Everything that the request has consumed stays consumed.
        """
        request = self._admission.request
        marks = request.match.marks
        if marks is not None and not limit.provides and limit.mark in marks.marks:
            return self._first
        if limit.mark in self._decided:  # FastAPI calls a dependency again with use_cache=False
            return self._decided[limit.mark]
        limits = self._admission.limits
        plan = limits.rules.plan_of([limit.mark], request.method, request.host, marks)
        verdict = self._admission.add(plan, await adecide(limits, plan, request, provided))
        verdict.raise_for_limit()
        self._decided[limit.mark] = verdict
        self._admission.native["state"]["ratelimit"] = self._admission.shown
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        return verdict

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and raise the rejection that it turns into an error.

        A mounted application responds with 500 to an error without a handler, before the middleware sees it.
        """
        hidden = False

        async def send_unless_hidden(message: Message) -> None:
            nonlocal hidden
            if message["type"] == "http.response.start" and message["status"] == _ERROR:
                hidden = not self._admission.verdict.allowed
            if not hidden:
                await send(message)

        await app(scope, receive, send_unless_hidden)
        if hidden:
            raise RateLimitExceeded(self._admission.verdict)


def decisions_of(scope: Mapping[str, Any]) -> DependencyDecisions | None:
    """Return the decisions of a request; None where no middleware handles it."""
    return scope.get(_KEY)


_shared: Final[WeakKeyDictionary[Any, dict[str, list[DependencyLimit]]]] = WeakKeyDictionary()
"""The limits in the annotations of a function, by parameter."""


def share_mark(limit: DependencyLimit, function: Any, parameter: str) -> None:
    """Give the limit the mark of an equal one at the same parameter.

    FastAPI evaluates an annotation that is kept as text once for each route.
    """
    try:
        known = _shared.setdefault(function, {}).setdefault(parameter, [])
    except TypeError:  # a callable object without a hash or without weak references
        return
    for first in known:
        if _comparable(first) == _comparable(limit):
            limit.mark = first.mark
            return
    known.append(limit)


def _comparable(limit: DependencyLimit) -> tuple[object, ...]:
    rule = limit.mark.rule
    options = [_without_identity(value) for value in (rule.limits, *rule.options.values())]
    return (options, {name: _without_identity(call) for name, call in limit.provides.items()})


def _without_identity(value: Any) -> object:
    """Return a value that compares by content: a lambda in a text is a new function each time."""
    return (value.__code__, value.__defaults__, value.__closure__) if isfunction(value) else value
