"""The ``Admission`` of a Django request, and its response to a rejection.

The request keeps it, so that throttles in the view add their decisions.
"""

import asyncio
import inspect
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from http.cookies import Morsel
from importlib import import_module
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..decision import RateLimitExceeded, Verdict
from ..errors import ConfigError
from ..http.admission import Admission
from ..http.limits import HttpLimits
from ..http.rejection import Rejection
from ..http.request import group_values
from ..rules.guard import current
from ..rules.plan import Plan
from ..stores.blocking import is_on_event_loop
from ..wsgi.exchange import ResponseBody
from .request import DjangoRequest

ATTRIBUTE: Final = "_ratelimit_mw"
"""The attribute of Django's request that holds its admission."""
_FIRST_ERROR: Final = 400


def resolve(value: Any) -> Any:
    """Return the value of a function, which may be async."""
    if not inspect.isawaitable(value):
        return value
    if is_on_event_loop():
        getattr(value, "close", int)()
        problem = "an async view waits for a feature, such as the user"
        raise ConfigError(f"{problem}. Write await acheck(...) for check, and await ausage(...) for usage")
    return async_to_sync(resolve_async)(value)


async def resolve_async(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class DjangoAdmission(Admission):
    """Shows all decisions together in ``request.ratelimit``, even when a throttle rejects."""

    request: Any
    raised: RateLimitExceeded | None = None
    """A rejection that other middleware has raised."""

    def __init__(self, limits: HttpLimits, request: Any, plan: Plan, verdict: Verdict) -> None:
        self._shown = vars(request.framework_request)
        super().__init__(limits, request, plan, verdict, request.server_data, self._shown)
        self._shown[ATTRIBUTE] = self

    def renew(self) -> DjangoRequest:
        return DjangoRequest(self.request.framework_request, self.request.may_await).at_place_of(self.request)

    def show(self) -> None:
        self._shown["ratelimit"] = self.shown

    resolve = staticmethod(resolve)

    def close(self, status: int | None) -> None:
        """End the request with its body. Code that keeps Django's request finds it later too."""
        self.is_streamed = False
        self.end(status)

    async def aclose(self, status: int | None) -> None:
        self.is_streamed = False
        await self.aend(status)

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        """Return the error for a rejection. REST framework responds to its own form of the error with a 429."""
        if "rest_framework.views" not in sys.modules:
            return RateLimitExceeded(verdict)
        return import_module(f"{__package__}.drf_errors").api_error(verdict)  # type: ignore[no-any-return]

    def own_response(self, error: RateLimitExceeded | None) -> Any:
        """Return what the project's function returns for a rejection; None without a function."""
        self.verdict = verdict = error.verdict if error else self.verdict
        reject = self.limits.reject
        return reject and reject(self.request.framework_request, verdict)

    def checked_response(self, response: Any) -> HttpResponseBase:
        """Return a response of Django. For ``None``, return the response of this package."""
        if response is None:
            response = self.rejection()
        if isinstance(response, Rejection):
            return _with_headers(response, b"" if self.request.method == "HEAD" else response.body)
        if not isinstance(response, HttpResponseBase):
            expected = "an HttpResponse or a Rejection as the response to a rejection"
            raise TypeError(f"expected {expected}; got {response!r}")
        return response if getattr(response, "is_rendered", True) else response.render()

    def add_headers(self, response: Any) -> None:
        """Replace the rate limit headers that the application has set."""
        for name in self.read_costs(response.headers.items()) if self.true_costs else ():
            response.headers.pop(name, None)
        added = self.text_headers(response.status_code)
        for name, value in () if self.keeps_headers(response.headers.items()) else added:
            response.headers[name] = value
        if not self.verdict.allowed and response.status_code >= _FIRST_ERROR:
            response.headers.setdefault("Cache-Control", "no-store")


def watch(response: Any, admission: DjangoAdmission) -> None:
    """Run a stream in its request, and close the admission with it.

    Under ASGI Django does not close a response whose stream fails or whose start cannot be sent. So the stream and,
    on an event loop, the response object are watched too.
    """
    admission.is_streamed, status = True, response.status_code
    # Not streaming_content: it refers to the response, which would then be collected late.
    if response.is_async:
        response.streaming_content = _awatch_stream(response._iterator, admission, status)
    elif getattr(response, "file_to_stream", None) is None:  # servers send and close files
        response.streaming_content = ResponseBody(response._iterator, admission)
    response._resource_closers.append(lambda: admission.close(status))
    _watch_response(response, admission, status)


async def _awatch_stream(content: Any, admission: DjangoAdmission, status: int) -> AsyncIterator[Any]:
    before = current.get()
    current.set(admission)
    try:
        async with aclosing(content) if hasattr(content, "aclose") else nullcontext():
            async for part in content:
                yield part
    finally:
        current.set(before)
        await admission.aclose(status)


def _watch_response(response: Any, admission: DjangoAdmission, status: int) -> None:
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


def _with_headers(rejection: Rejection, body: bytes) -> HttpResponse:
    """Return a response of Django, which has one line of each name, except for cookies."""
    names = {name.lower(): name for name, _ in rejection.headers}
    lines = group_values((name.lower(), value) for name, value in rejection.headers)
    cookies = lines.pop("set-cookie", [])
    joined = {names[name]: ", ".join(values) for name, values in lines.items()}
    response = HttpResponse(body, status=rejection.status, headers=joined)
    for line in cookies:
        response.cookies[line] = _SetCookie(line)
    return response


class _SetCookie(Morsel[str]):
    """A cookie that Django sends exactly as it is written."""

    def __init__(self, line: str) -> None:
        super().__init__()
        name, _, value = line.partition(";")[0].partition("=")
        self.set(name.strip(), value.strip(), value.strip())
        self._line = line

    def OutputString(self, attrs: Any = None) -> str:  # noqa: N802 - the name of the standard library
        return self._line
