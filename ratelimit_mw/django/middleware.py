"""The middleware, sync and async, around what does no I/O of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ..decision import Verdict
from ..errors import MissingMiddlewareError
from ..rules.marks import decided, undecided
from . import conf
from .admission import Current
from .deciding import adecide, decide, later, now
from .limits import MatchedRequest, ProjectLimits
from .streaming import ends_later

__all__ = ["RateLimitMiddleware"]

_NOTHING: Final = Verdict()
_HIDDEN: Final = (
    "RateLimitMiddleware is there, but does not see the limit. Does a decorator above @limit not use functools.wraps,"
    " or did another view call this one?"
)


class RateLimitMiddleware:
    """Decides every request to Django by ``settings.RATELIMIT_MW`` and by the decorators on views.

    It stands after ``AuthenticationMiddleware``, so that the user is known. Views find the verdict in
    ``request.ratelimit``. ``ConfigError`` when Django starts, for settings and decorators that cannot work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        conf.enforcer().routes()

    def __call__(self, request: Any) -> Any:
        if self._is_async:
            return self._acall(request)
        enforcer = conf.enforcer()
        asked = enforcer.ask(request)
        before = decided(asked.view)
        try:
            return self._handle(enforcer, asked, Current(asked.request, asked.view, enforcer.guard.writer))
        finally:
            undecided(before)

    async def _acall(self, request: Any) -> Any:
        enforcer = conf.enforcer()
        asked = enforcer.ask(request, awaits=True)
        before = decided(asked.view)
        try:
            return await self._ahandle(enforcer, asked, Current(asked.request, asked.view, enforcer.guard.writer))
        finally:
            undecided(before)

    @staticmethod
    def process_exception(_: Any, error: Exception) -> None:
        """Where a limit was hidden from the middleware, the error says so."""
        if isinstance(error, MissingMiddlewareError):
            error.add_note(_HIDDEN)

    def _handle(self, enforcer: ProjectLimits, asked: MatchedRequest, current: Current) -> Any:
        verdict = decide(enforcer, asked, current) if not asked.plan.is_empty else _NOTHING
        if verdict:
            try:
                if asked.plan.may_delay and verdict.delay:
                    time.sleep(verdict.delay)
                response = self.get_response(asked.django)
                enforcer.compare(asked)
            except BaseException as error:
                current.over(_status_of(error))
                raise
        else:
            reject = enforcer.guard.reject
            response = enforcer.answer(asked, current, reject and now(reject(asked.django, verdict)))
        current.add_headers(response)
        if not ends_later(response, current):
            current.over(response.status_code)
        return response

    async def _ahandle(self, enforcer: ProjectLimits, asked: MatchedRequest, current: Current) -> Any:
        verdict = await adecide(enforcer, asked, current) if not asked.plan.is_empty else _NOTHING
        if verdict:
            try:
                if asked.plan.may_delay and verdict.delay:
                    await asyncio.sleep(verdict.delay)
                response = await self.get_response(asked.django)
                enforcer.compare(asked)
            except BaseException as error:
                await current.aover(_status_of(error))
                raise
        else:
            reject = enforcer.guard.reject
            response = enforcer.answer(asked, current, reject and await later(reject(asked.django, verdict)))
        current.add_headers(response)
        if not ends_later(response, current):
            await current.aover(response.status_code)
        return response


def _status_of(error: BaseException) -> int | None:
    """What the server answers; None where it was told to stop, and nobody knows how the request would have ended."""
    return 500 if isinstance(error, Exception) else None
