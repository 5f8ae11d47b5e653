"""The Django middleware, sync and async."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import django.conf
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.signals import got_request_exception
from django.dispatch import receiver
from django.utils.module_loading import import_string

from ..clock import monotonic
from ..decision import RateLimitExceeded, Verdict, rejection_of
from ..http.warnings import warn
from ..rules.guard import current
from ..settings.framework import SETTING
from ..stores.blocking import run_blocking
from .admission import ATTRIBUTE, DjangoAdmission, resolve, resolve_async, watch
from .limits import ProjectLimits, plan_of, project_limits

_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
BEFORE_USER: Final = (
    "A rule counts by user, but RateLimitMiddleware runs before the user is known.",
    f"Move it after AuthenticationMiddleware, or set features.user in {SETTING} to a function.",
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
        self._is_listed_twice = len(positions_of(RateLimitMiddleware)) > 1
        project_limits().routes()
        if is_before_user(project_limits()):  # a server does not run W003
            warn(" ".join(BEFORE_USER))

    def __call__(self, native: Any) -> Any:
        handling = self._handle(native)
        return handling if self._is_async else run_blocking(handling)

    @staticmethod
    def process_exception(native: Any, error: Exception) -> Any:
        """Respond to a rejection that the view has raised."""
        if (rejection := rejection_of(error)) is None:
            return None
        admission: DjangoAdmission = getattr(native, ATTRIBUTE)
        return admission.checked_response(resolve(admission.own_response(rejection)))

    async def _handle(self, native: Any) -> Any:
        """Return the response. In a sync stack no step awaits an event loop."""
        project = project_limits()
        watches = project.limits.in_force.watch
        if self._is_async and watches is not None and monotonic() >= watches.due_at:
            await watches.alook()
        request = project.open_request(native, self._is_async)
        before = current.get()
        try:
            before_user = self._is_listed_twice and not hasattr(native, ATTRIBUTE)
            limits, verdict = request.limits, Verdict()
            plan = plan_of(limits, request, before_user)
            if self._is_async and not plan.is_empty:
                verdict = await limits.adecide(plan, request)
            elif not plan.is_empty:
                verdict = limits.decide(plan, request, resolve=resolve)
            admission = DjangoAdmission(limits, request, plan, verdict)
            admission.enter(request.marks)
            try:
                if verdict:
                    response = await self._run(request, admission, verdict.delay if plan.may_delay else 0.0)
                else:
                    response = await self._respond(admission)
            except BaseException as error:  # where the server stops, the outcome is not known
                await self._end(admission, 500 if isinstance(error, Exception) else None)
                raise
            admission.add_headers(response)
            if response.streaming:
                watch(response, admission)
            if not (response.streaming and admission.ends_with_body):
                await self._end(admission, response.status_code)
            return response
        finally:
            current.set(before)

    async def _run(self, request: Any, admission: DjangoAdmission, delay: float) -> Any:
        if delay:
            await asyncio.sleep(delay) if self._is_async else time.sleep(delay)
        response = self.get_response(request.framework_request)
        if self._is_async:
            response = await response
        if admission.raised is not None:
            response = await self._respond(admission, admission.raised)
        return response

    async def _respond(self, admission: DjangoAdmission, error: RateLimitExceeded | None = None) -> Any:
        response = admission.own_response(error)
        return admission.checked_response(await resolve_async(response) if self._is_async else resolve(response))

    async def _end(self, admission: DjangoAdmission, status: int | None) -> None:
        await admission.aend(status) if self._is_async else admission.end(status)


@receiver(got_request_exception)  # type: ignore[untyped-decorator] # Django has no types
def _note_rejection(request: Any = None, **_: Any) -> None:
    """Note a rejection that other middleware has raised. Django makes a 500 of it before this one sees it."""
    error, admission = rejection_of(sys.exc_info()[1]), getattr(request, ATTRIBUTE, None)
    if error is not None and admission is not None:
        admission.raised = error


def positions_of(middleware: str | type) -> list[int]:
    """Return the positions of a class and its subclasses in ``MIDDLEWARE``, by name: some classes need the models."""
    name = middleware if isinstance(middleware, str) else f"{middleware.__module__}.{middleware.__qualname__}"
    return [
        position
        for position, entry in enumerate(map(import_string, django.conf.settings.MIDDLEWARE))
        if any(name == f"{base.__module__}.{base.__qualname__}" for base in getattr(entry, "__mro__", ()))
    ]


def is_before_user(project: ProjectLimits) -> bool:
    """Return whether a rule counts by user, and the last position of the middleware is before the user is known."""
    if "user" not in project.middleware_needs or project.limits.gives_user:
        return False
    position, authentication = (max(positions_of(one), default=-1) for one in (RateLimitMiddleware, _AUTHENTICATION))
    return position >= 0 and (authentication < 0 or position < authentication)
