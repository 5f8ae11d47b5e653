"""The middleware, sync and async, around what does no I/O of its own."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction

from ..decision import Verdict
from ..marks import decided, undecided
from . import conf
from .current import Current
from .enforcer import Asked, Enforcer, at_close

__all__ = ["RateLimitMiddleware"]

_NOTHING: Final = Verdict((), ())


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
            return self._handle(enforcer, asked, Current(request, enforcer.guard.writer))
        finally:
            undecided(before)

    async def _acall(self, request: Any) -> Any:
        enforcer = conf.enforcer()
        asked = enforcer.ask(request, awaits=True)
        before = decided(asked.view)
        try:
            return await self._ahandle(enforcer, asked, Current(request, enforcer.guard.writer))
        finally:
            undecided(before)

    def _handle(self, enforcer: Enforcer, asked: Asked, current: Current) -> Any:
        verdict = self._decide(enforcer, asked, current) if asked.plan.looks else _NOTHING
        if verdict:
            try:
                if asked.plan.delays and verdict.delay:
                    time.sleep(verdict.delay)
                response = self.get_response(asked.django)
            except BaseException as error:
                current.over(_status_of(error))
                raise
        else:
            refuse = enforcer.guard.refuse
            response = enforcer.answer(asked, current, refuse and _now(refuse(asked.django, verdict)))
        current.add_headers(response)
        if not _ends_later(response, current):
            current.over(response.status_code)
        return response

    async def _ahandle(self, enforcer: Enforcer, asked: Asked, current: Current) -> Any:
        verdict = await self._adecide(enforcer, asked, current) if asked.plan.looks else _NOTHING
        if verdict:
            try:
                if asked.plan.delays and verdict.delay:
                    await asyncio.sleep(verdict.delay)
                response = await self.get_response(asked.django)
            except BaseException as error:
                await asyncio.shield(current.aover(_status_of(error)))
                raise
        else:
            refuse = enforcer.guard.refuse
            response = enforcer.answer(asked, current, refuse and await _later(refuse(asked.django, verdict)))
        current.add_headers(response)
        if not _ends_later(response, current):
            await current.aover(response.status_code)
        return response

    @staticmethod
    def _decide(enforcer: Enforcer, asked: Asked, current: Current) -> Verdict:
        features = enforcer.guard.reader.of(asked.plan, asked.request)
        for name, value in features.items():
            features[name] = _now(value)
        verdict = enforcer.limiter.decide(asked.plan, features, request=asked.django)
        enforcer.note(asked, verdict, current)
        return verdict

    @staticmethod
    async def _adecide(enforcer: Enforcer, asked: Asked, current: Current) -> Verdict:
        features = enforcer.guard.reader.of(asked.plan, asked.request)
        for name, value in features.items():
            features[name] = await _later(value)
        verdict = await enforcer.limiter.adecide(asked.plan, features, request=asked.django)
        enforcer.note(asked, verdict, current)
        return verdict


def _status_of(error: BaseException) -> int | None:
    """What the server answers; None where it was told to stop, and nobody knows how the request would have ended."""
    return 500 if isinstance(error, Exception) else None


def _ends_later(response: Any, current: Current) -> bool:
    """Whether slots stay taken while the response streams. A cost may be stated until it is closed in any case."""
    if not response.streaming or not current.pending:
        return False
    at_close(response, lambda: current.over(response.status_code))
    return current.holds


def _now(value: Any) -> Any:
    """What an async function gives where nobody can await it."""
    return async_to_sync(_later)(value) if inspect.isawaitable(value) else value


async def _later(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
