"""The response to a rejection: that of ``rejection`` in the settings, else the package's own."""

from http.cookies import Morsel
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ..errors import RateLimitExceeded
from ..http.rejection import Rejection
from ..http.request import group_values
from .admission import DjangoAdmission, resolve, resolve_async


def respond(admission: DjangoAdmission, error: RateLimitExceeded | None = None) -> HttpResponseBase:
    """Return the response to the rejection of an admission, or to one that other code has raised."""
    return _checked(admission, resolve(_own_response(admission, error)))


async def arespond(admission: DjangoAdmission, error: RateLimitExceeded | None = None) -> HttpResponseBase:
    """Async form of ``respond``."""
    return _checked(admission, await resolve_async(_own_response(admission, error)))


def _own_response(admission: DjangoAdmission, error: RateLimitExceeded | None) -> Any:
    """Return what the project's function returns for a rejection; None without a function."""
    admission.verdict = verdict = error.verdict if error else admission.verdict
    reject = admission.limits.reject
    return reject and reject(admission.request.framework_request, verdict)


def _checked(admission: DjangoAdmission, response: Any) -> HttpResponseBase:
    """Return a response of Django. For ``None``, return the response of this package."""
    if response is None:
        response = admission.rejection()
    if isinstance(response, Rejection):
        body = b"" if admission.request.method == "HEAD" else response.body
        return _with_headers(response, body)
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"expected an HttpResponse or a Rejection as the response to a rejection; got {response!r}")
    return response if getattr(response, "is_rendered", True) else response.render()


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
