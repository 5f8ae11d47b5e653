"""The Django middleware, sync and async. Streams end their request when they end."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from typing import Any, Final

import django.conf
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_resolver
from django.utils.module_loading import import_string
from django.utils.translation import get_language

from ..clock import monotonic
from ..decision import Verdict, rejection_of
from ..http.admission import ADMISSION, undecided
from ..http.limits import HttpLimits
from ..http.rejection import Rejection
from ..http.warnings import warn
from ..rules.marks import get_admission, set_admission
from ..rules.plan import Plan
from ..settings import SETTING
from ..wsgi.exchange import ResponseBody
from .limits import ProjectLimits, project_limits, rules_of_throttles
from .request import ATTRIBUTE, DjangoAdmission, DjangoRequest, native_of, result_of, wait_for

_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
BEFORE_USER: Final = (
    "A rule counts by user, but RateLimitMiddleware runs before the user is known."
    f" Move it after AuthenticationMiddleware, or set features.user in {SETTING} to a function."
)

_end_of_thread: Final = sync_to_async(lambda: None)
"""Returns when the thread of a request is free."""


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
            warn(BEFORE_USER, "before-user")

    def __call__(self, framework_request: Any) -> Any:
        handling = self._handle(framework_request)
        if self._is_async:
            return handling
        try:  # ``run_blocking`` without its call
            handling.send(None)
        except StopIteration as end:
            return end.value
        raise RuntimeError("a sync middleware waits for an event loop")

    @staticmethod
    def process_exception(framework_request: Any, error: Exception) -> Any:
        """Respond to a rejection that the view has raised."""
        admission: DjangoAdmission | None = getattr(framework_request, ATTRIBUTE, None)
        if admission is None:  # middleware inside has passed on a request of its own
            return None
        if (rejection := rejection_of(error)) is None:
            admission.note_error(error)
            return None
        admission.verdict = rejection.verdict
        return respond(admission, wait_for(admission.custom_response()))

    async def _handle(self, framework_request: Any) -> Any:
        """Return the response. In a sync stack no step awaits an event loop."""
        before = get_admission()
        try:
            admission = await self._admit(framework_request)
            try:
                if admission.verdict.allowed:
                    response = await self._run(framework_request, admission)
                else:
                    response = await self._respond(admission)
            except BaseException as error:  # where the server stops, the outcome is not known
                if self._is_async and admission.has_slots and isinstance(error, asyncio.CancelledError):
                    await asyncio.shield(_end_after_thread(admission))
                else:
                    await self._end(admission, 500 if isinstance(error, Exception) else None)
                raise
            admission.add_headers(response)
            if not admission.verdict.allowed:
                # Otherwise Django logs a line for each, and mails those from 500 on to ADMINS, during an overload too.
                response._has_been_logged = True
            if response.streaming:
                run_stream(response, admission)
            if not (response.streaming and admission.ends_with_body):
                await self._end(admission, response.status_code)
            return response
        finally:
            set_admission(before)

    async def _admit(self, framework_request: Any) -> DjangoAdmission:
        """Decide a request, and make it that of this thread or task."""
        project, urlconf = ProjectLimits.current or project_limits(), getattr(framework_request, "urlconf", None)
        routes = project.by_resolver.get(get_resolver(urlconf)) or project.routes(urlconf)
        limits = project.http_limiter.in_force  # with the limits of these routes
        if limits.watch is not None and monotonic() >= limits.watch.due_at:
            await limits.watch.alook() if self._is_async else limits.watch.look()
            limits = project.http_limiter.in_force
        language = get_language() if routes.has_languages else None
        place = language, framework_request.path_info or "/", framework_request.method or ""
        to, params = routes.cached.get(place) or routes.find(*place)
        request = DjangoRequest(framework_request, to, self._is_async)
        request.limits, request.path_params = limits, params
        plan = self._plan(limits, request)
        verdict = Verdict() if plan.is_empty else await self._decide(limits, plan, request)
        admission = DjangoAdmission(limits, request, plan, verdict)
        admission.delay = verdict.delay if plan.may_delay else 0.0
        set_admission(admission)
        return admission

    def _plan(self, limits: HttpLimits, request: DjangoRequest) -> Plan:
        """Return the plan of a request without the rules of throttles, and without those decided elsewhere."""
        plan, native = limits.rules.plan_for_request(request), native_of(request.framework_request)
        before_user = self._is_listed_twice and not hasattr(request.framework_request, ATTRIBUTE)
        if before_user or ADMISSION in native:
            plan = undecided(plan, limits, native, before_user)
        names = rules_of_throttles(limits.rules)
        return limits.plan_without(plan, names) if names else plan

    async def _decide(self, limits: HttpLimits, plan: Plan, request: DjangoRequest) -> Verdict:
        if self._is_async:
            return await limits.adecide(plan, request)
        if limits.reader.may_await:
            return limits.decide(plan, request)
        return limits.limiter.decide(plan, limits.reader.read(plan, request), None, True, request)

    async def _run(self, framework_request: Any, admission: DjangoAdmission) -> Any:
        if delay := admission.delay:
            await asyncio.sleep(delay) if self._is_async else time.sleep(delay)
        response = self.get_response(framework_request)
        return await response if self._is_async else response

    async def _respond(self, admission: DjangoAdmission) -> Any:
        custom = admission.custom_response()
        return respond(admission, await result_of(custom) if self._is_async else wait_for(custom))

    async def _end(self, admission: DjangoAdmission, status: int | None) -> None:
        await admission.aend(status) if self._is_async else admission.end(status)


async def _end_after_thread(admission: DjangoAdmission) -> None:
    """End a cancelled request whose view may continue in its thread, and holds a slot there."""
    try:
        await _end_of_thread()
    finally:
        await admission.aend(None)


def positions_of(middleware: str | type) -> list[int]:
    """Return the positions of a class and its subclasses in ``MIDDLEWARE``, by name: some classes need the models."""
    name = middleware if isinstance(middleware, str) else f"{middleware.__module__}.{middleware.__qualname__}"
    return [
        position
        for position, entry in enumerate(map(import_string, django.conf.settings.MIDDLEWARE))
        if any(name == f"{base.__module__}.{base.__qualname__}" for base in getattr(entry, "__mro__", ()))
    ]


def is_before_user(project: ProjectLimits) -> bool:
    """Return whether a rule counts by user, and the last position of the middleware is before the user is known.

    It is known to throttles, and to views that name a rule.
    """
    rules, throttled = project.http_limiter.in_force.rules, rules_of_throttles(project.http_limiter.in_force.rules)
    decided = [rule.source for rule in rules.rules if rule.name not in throttled]
    needs = [need for rule in decided if not rule.matches.is_only_named for need in rule.needs]
    if "user" not in (*rules.lists.needs, *needs) or project.http_limiter.gives_user:
        return False
    position, authentication = (max(positions_of(one), default=-1) for one in (RateLimitMiddleware, _AUTHENTICATION))
    return position >= 0 and (authentication < 0 or position < authentication)


def respond(admission: DjangoAdmission, custom: Any) -> HttpResponseBase:
    """Return the response to a rejection: that of the project's function, or for ``None`` that of this package."""
    if custom is None or isinstance(custom, Rejection):
        rejection = custom or admission.rejection().response
        if custom and len({name.lower() for name, _ in custom.headers}) < len(custom.headers):
            raise TypeError("Django sends one line of each header. For several cookies, return an HttpResponse")
        body = b"" if admission.request.method == "HEAD" else rejection.body
        return HttpResponse(body, status=rejection.status, headers=dict(rejection.headers))
    if not isinstance(custom, HttpResponseBase):
        expected = "an HttpResponse or a Rejection as the response to a rejection"
        raise TypeError(f"expected {expected}; got {custom!r}")
    return custom if getattr(custom, "is_rendered", True) else custom.render()


def run_stream(response: Any, admission: DjangoAdmission) -> None:
    """Run a stream in its request, and close the admission with it.

    Under ASGI Django does not close a response whose stream fails or whose start cannot be sent. So the admission also
    ends with the stream and, on an event loop, with the response object.
    """
    admission.is_streamed, status = True, response.status_code
    # Not streaming_content: it refers to the response, which would then be collected late.
    if response.is_async:
        response.streaming_content = _run_async_stream(response._iterator, admission, status)
    elif getattr(response, "file_to_stream", None) is None:  # servers send and close files
        # Over ASGI Django sends the status before it reads the stream; WSGI servers send it with the first bytes.
        error_status = status if "type" in admission.native else 500
        response.streaming_content = ResponseBody(response._iterator, admission, error_status=error_status)
    response._resource_closers.append(lambda: admission.close(status))
    _end_when_collected(response, admission, status)


async def _run_async_stream(content: Any, admission: DjangoAdmission, status: int) -> AsyncIterator[Any]:
    before = get_admission()
    set_admission(admission)
    try:
        async with aclosing(content) if hasattr(content, "aclose") else nullcontext():
            async for part in content:
                yield part
    finally:
        set_admission(before)
        await admission.aclose(status)


def _end_when_collected(response: Any, admission: DjangoAdmission, status: int) -> None:
    """End the admission when the response is collected, on the loop: a finalizer cannot wait for a lock."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # WSGI servers close every response
        return

    def end() -> None:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(admission.aclose(status), loop)

    finalizer = weakref.finalize(response, end)
    finalizer.atexit = False
    response._resource_closers.append(finalizer.detach)
