"""One request between its first decision and its response, for the limits that it meets on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.limiter import HttpLimiter
from ..http.request import Request
from ..rules.marks import Mark
from .routes.index import RouteIndex
from .routes.match import DependencyLimit, RouteMatch

__all__ = ["Exchange", "exchange_of"]

_KEY: Final = "ratelimit_mw.exchange"
_ERROR: Final = 500

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Exchange:
    """What the middleware knows of a request that it has let in. ``verdict`` is the first decision.

    It stands in the scope, where limits that are met on the way find it.
    """

    __slots__ = ("_guard", "_index", "_met", "_request", "_routed", "_scope", "hides", "verdicts")

    def __init__(
        self,
        guard: HttpLimiter,
        request: Request,
        routed: RouteMatch,
        verdict: Verdict,
        scope: MutableMapping[str, Any],
        index: RouteIndex | None,
    ) -> None:
        self._guard = guard
        self._index = index
        self._request = request
        self._routed = routed
        self._met: dict[Mark, Verdict] = {}
        self._scope = scope
        self.verdicts = [verdict]
        self.hides = False
        """Whether the application has answered a rejection with 500, which nobody has seen."""
        if routed.meets or (routed.view is not None and routed.view.messages):
            scope[_KEY] = self

    async def meet(self, limit: DependencyLimit, given: Mapping[str, Any]) -> Verdict:
        """The verdict on a limit, which is decided now unless it was beforehand, or when it was met before.

        Raises ``RateLimitExceeded`` when it rejects; what the request has consumed until then is given back.
        """
        view = self._routed.view
        if view is not None and not limit.given and limit.mark in view.marks:
            return self.verdicts[0]
        if limit.mark in self._met:  # a dependency that FastAPI calls again, as with use_cache=False
            return self._met[limit.mark]
        limiter = self._guard.limiter
        plan = self._guard.plan_of([limit.mark], self._request, view)
        verdict = await self._guard.decide(plan, self._request, given)
        if not verdict.allowed:
            for earlier in self.verdicts:
                await limiter.arefund(earlier)
            self.verdicts.append(verdict)
            raise RateLimitExceeded(verdict)
        self.verdicts.append(verdict)
        self._met[limit.mark] = verdict
        limiter.hold(verdict)
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        return verdict

    def hiding(self, send: Send) -> Send:
        """For a request that may be rejected on its way: hands on all but an error that the application makes of that.

        A mounted application answers errors that it has no handler for with 500, before anybody outside hears of them.
        """
        if not self._routed.meets:
            return send

        async def pass_on(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == _ERROR:
                self.hides = not self.verdicts[-1].allowed
            if not self.hides:
                await send(message)

        return pass_on

    def answered(self) -> Verdict:
        """The application answers: what its response is to tell. Of a rejection that alone, else all decisions."""
        if self._index is not None:
            self._index.compare(self._routed, self._scope.get("endpoint"))
        last = self.verdicts[-1]
        if len(self.verdicts) == 1 or not last.allowed:
            return last
        return Verdict([decision for verdict in self.verdicts for decision in verdict.decisions])

    async def conclude(self, status: int | None) -> None:
        """Give back slots and what does not count, of all that was decided."""
        for verdict in self.verdicts:
            await self._guard.limiter.aconclude(verdict, status)


def exchange_of(scope: Mapping[str, Any]) -> Exchange | None:
    """The exchange that a scope belongs to; None when no middleware put one there."""
    return scope.get(_KEY)
