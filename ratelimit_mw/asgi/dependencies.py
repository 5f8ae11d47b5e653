"""Limits on FastAPI dependencies: those that a request meets on its way to the view, after its first decision."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from inspect import isfunction
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import Admission
from ..http.limiter import HttpLimiter
from ..http.request import Request
from ..rules.marks import Mark, ViewMarks

_KEY: Final = "ratelimit_mw.dependencies"
"""The key of the scope that holds the ``DependencyDecisions`` of the request."""
_ERROR: Final = 500

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class DependencyLimit:
    """A limit that a dependency carries. Objects with the same mark are one limit.

    Args:
        mark: The limit.
        provides: The features that only dependencies know, each with its dependency. Without any, the limit is
            decided with all others, before the dependencies are called.
    """

    def __init__(self, mark: Mark, provides: Mapping[str, object]) -> None:
        self.mark = mark
        self.provides = provides

    @property
    def early_marks(self) -> ViewMarks:
        """The part that is decided before the dependencies are called."""
        return ViewMarks() if self.provides else ViewMarks((self.mark,))


class DependencyDecisions:
    """Decides the dependency limits of one request. The scope keeps it for them."""

    def __init__(self, limits: HttpLimiter, admission: Admission, request: Request, marks: ViewMarks | None) -> None:
        self._limits = limits
        self._admission = admission
        self._request = request
        self._marks = marks
        self._first = admission.verdict
        self._decided: dict[Mark, Verdict] = {}

    def put_into(self, scope: Scope) -> None:
        scope[_KEY] = self

    async def decide(self, limit: DependencyLimit, provided: Mapping[str, Any]) -> Verdict:
        """Return the verdict on a limit, which is decided once.

        Raises ``RateLimitExceeded`` when it rejects. Everything that the request has consumed is then refunded.
        """
        if self._marks is not None and not limit.provides and limit.mark in self._marks.marks:
            return self._first
        if limit.mark in self._decided:  # FastAPI calls a dependency again with use_cache=False
            return self._decided[limit.mark]
        request, rules = self._request, self._limits.rules
        host = request.host if rules.needs_host else ""
        plan = rules.plan_of([limit.mark], request.method, host, self._marks)
        verdict = await self._admission.adecide(plan, request, provided)
        verdict.raise_for_limit()
        self._decided[limit.mark] = verdict
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        return verdict

    async def run(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], *args: Any) -> None:
        """Run the application, and raise the rejection that it turns into an error.

        A mounted application responds with 500 to an error without a handler, before the middleware sees it.
        """
        scope, receive, send = args
        hidden = False

        async def send_unless_hidden(message: MutableMapping[str, Any]) -> None:
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
