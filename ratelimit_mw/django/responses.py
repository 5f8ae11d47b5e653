"""The responses of Django: those to a rejection, and streams, which end their request when they end."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from http.cookies import Morsel
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..http.rejection import Rejection
from ..http.request import group_values
from ..rules.marks import current
from ..wsgi.exchange import ResponseBody
from .request import DjangoAdmission


def respond(admission: DjangoAdmission, custom: Any) -> HttpResponseBase:
    """Return the response to a rejection: that of the project's function, or for ``None`` that of this package."""
    if custom is None:
        rejection = admission.rejection().response
        body = b"" if admission.request.method == "HEAD" else rejection.body
        return HttpResponse(body, status=rejection.status, headers=dict(rejection.headers))
    if isinstance(custom, Rejection):
        return _with_headers(custom, b"" if admission.request.method == "HEAD" else custom.body)
    if not isinstance(custom, HttpResponseBase):
        expected = "an HttpResponse or a Rejection as the response to a rejection"
        raise TypeError(f"expected {expected}; got {custom!r}")
    return custom if getattr(custom, "is_rendered", True) else custom.render()


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
