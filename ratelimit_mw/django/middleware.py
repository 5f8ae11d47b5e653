"""The Django middleware, sync and async."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ..errors import MissingMiddlewareError
from ..rules.guard import mark_decided, restore_decided
from . import conf
from .admission import DjangoAdmission, resolve, resolve_async
from .limits import ProjectLimits
from .streaming import ends_later

_HINT: Final = (
    "RateLimitMiddleware runs, but does not see this limit. Check for a decorator above @limit that does not use"
    " functools.wraps, and for a view that calls this one."
)


class RateLimitMiddleware:
    """Limit the requests to a Django project by ``settings.RATELIMIT_MW`` and by the decorators on views.

    List it in ``MIDDLEWARE`` after ``AuthenticationMiddleware``, so that the user is known. Views find the verdict in
    ``request.ratelimit``.

    Args:
        get_response: The next middleware or view.

    Raises:
        ConfigError: A setting or a decorator cannot work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        conf.project_limits().routes()

    def __call__(self, native: Any) -> Any:
        if self._is_async:
            return self._acall(native)
        project = conf.project_limits()
        request = project.match(native)
        before = mark_decided(request.marks)
        try:
            return self._handle(project, request)
        finally:
            restore_decided(before)

    async def _acall(self, native: Any) -> Any:
        project = conf.project_limits()
        request = project.match(native, may_await=True)
        before = mark_decided(request.marks)
        try:
            return await self._ahandle(project, request)
        finally:
            restore_decided(before)

    @staticmethod
    def process_exception(_: Any, error: Exception) -> None:
        """Add a hint to the error of a limit that the middleware does not see."""
        if isinstance(error, MissingMiddlewareError):
            error.add_note(_HINT)

    def _handle(self, project: ProjectLimits, request: Any) -> Any:
        plan = project.plan(request)
        admission = DjangoAdmission(project.limits, request)
        if not plan.is_empty:
            admission.decide(plan, request)
            admission.note_in(request.native)
        if admission.verdict:
            try:
                if plan.may_delay and admission.verdict.delay:
                    time.sleep(admission.verdict.delay)
                response = self.get_response(request.framework_request)
                project.compare(request)
            except BaseException as error:
                admission.end(_status_of(error))
                raise
        else:
            reject = project.limits.reject
            own = reject and resolve(reject(request.framework_request, admission.verdict))
            response = project.rejection(admission, own)
        admission.add_headers(response)
        if not ends_later(response, admission):
            admission.end(response.status_code)
        return response

    async def _ahandle(self, project: ProjectLimits, request: Any) -> Any:
        plan = project.plan(request)
        admission = DjangoAdmission(project.limits, request)
        if not plan.is_empty:
            await admission.adecide(plan, request)
            admission.note_in(request.native)
        if admission.verdict:
            try:
                if plan.may_delay and admission.verdict.delay:
                    await asyncio.sleep(admission.verdict.delay)
                response = await self.get_response(request.framework_request)
                project.compare(request)
            except BaseException as error:
                await admission.aend(_status_of(error))
                raise
        else:
            reject = project.limits.reject
            own = reject and await resolve_async(reject(request.framework_request, admission.verdict))
            response = project.rejection(admission, own)
        admission.add_headers(response)
        if not ends_later(response, admission):
            await admission.aend(response.status_code)
        return response


def _status_of(error: BaseException) -> int | None:
    """Return the status that the server sends; None where it stops, so that the outcome is not known."""
    return 500 if isinstance(error, Exception) else None
