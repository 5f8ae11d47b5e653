"""The response to a rejection: of ``rejection`` in the settings, of ``handler429`` in the URLconf, of ``429.html``.

The handler is found as Django finds ``handler403``, in the URLconf of the request. Where there are none of the three,
the response is the package's own.
"""

from collections.abc import Callable
from http.cookies import Morsel
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import ViewDoesNotExist
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template
from django.urls import get_callable, get_resolver

from ..decision import Verdict
from ..errors import ConfigError, RateLimitExceeded, error_path
from ..http.rejection import Rejection, prefers_html
from ..http.request import group_values
from ..http.rules import HttpRules
from ..rules.declaration import checked_call
from .admission import DjangoAdmission, resolve, resolve_async

_HANDLER: Final = "handler429"
_TEMPLATE: Final = "429.html"
_STATUS: Final = 429


def respond(limits: HttpRules, admission: DjangoAdmission, error: RateLimitExceeded | None = None) -> HttpResponseBase:
    """Return the response to the rejection of an admission, or to one that other code has raised."""
    admission.verdict = verdict = error.verdict if error else admission.verdict
    native = admission.request.framework_request
    if limits.owner.reject:
        return _checked(admission, resolve(limits.owner.reject(native, verdict)))
    page = _page_of(admission)
    return _checked(admission, page and resolve(page(native, error or RateLimitExceeded(verdict))))


async def arespond(
    limits: HttpRules, admission: DjangoAdmission, error: RateLimitExceeded | None = None
) -> HttpResponseBase:
    """Async form of ``respond``. Pages run in a thread, as in Django: a template may query the database."""
    admission.verdict = verdict = error.verdict if error else admission.verdict
    if limits.owner.reject:
        own = limits.owner.reject(admission.request.framework_request, verdict)
        return _checked(admission, await resolve_async(own))
    if _page_of(admission) is None:
        return _checked(admission, None)
    return await sync_to_async(respond, thread_sensitive=False)(limits, admission, error)


def check_pages(resolver: Any) -> None:
    """Raise ``ConfigError`` for a ``handler429`` or a ``429.html`` that cannot work."""
    with error_path(f"{getattr(resolver.urlconf_module, '__name__', 'ROOT_URLCONF')}.{_HANDLER}"):
        try:
            if handler := _handler_of(resolver):
                checked_call(handler, "the request", "the exception")
        except (ImportError, ViewDoesNotExist) as error:
            raise ConfigError(f"expected a function, or its dotted path: {error}") from None
    try:
        _template()
    except TemplateSyntaxError as error:
        raise ConfigError(str(error), of=_TEMPLATE) from None


def problem_of_template() -> str | None:
    """Return why ``429.html`` cannot be rendered for a request without context processors; None where it can be."""
    try:
        if template := _template():
            error = RateLimitExceeded(Verdict((), False))
            template.render({"request": HttpRequest(), "csrf_token": "x", **_context(error, "1")})
    except Exception as error:  # code of the project: any
        return f"{type(error).__name__}: {error}"
    return None


def _page_of(admission: DjangoAdmission) -> Callable[[Any, RateLimitExceeded], Any] | None:
    """Return the function of a 429 that has the form of ``handler429``; None without one."""
    if admission.verdict.status != _STATUS:
        return None
    native = admission.request.framework_request
    if handler := _handler_of(get_resolver(getattr(native, "urlconf", None))):
        return handler
    template = _template() if prefers_html(admission.accept) else None
    if template is None:
        return None

    def render(request: Any, error: RateLimitExceeded) -> HttpResponse:
        body = template.render(_context(error, admission.retry_after), request)
        return HttpResponse(body, status=_STATUS, headers={"Cache-Control": "no-store"})

    return render


def _context(error: RateLimitExceeded, retry_after: str | None) -> dict[str, Any]:
    """Return the context of the template. It has no verdict, because a template would look up the verdict's rules."""
    seconds = retry_after and int(retry_after)
    return {"exception": error, "rejected_by": error.verdict.rejected_by, "retry_after": seconds}


def _handler_of(resolver: Any) -> Callable[[Any, RateLimitExceeded], Any] | None:
    handler = getattr(resolver.urlconf_module, _HANDLER, None)
    return get_callable(handler) if handler else None


def _template() -> Any:
    try:
        return get_template(_TEMPLATE)
    except TemplateDoesNotExist:
        return None


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
