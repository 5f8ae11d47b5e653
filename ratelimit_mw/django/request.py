"""A Django request, the same under WSGI and ASGI: as features are read from it, and its ``Admission``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import MutableMapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings

from ..asgi.request import ASGIRequest
from ..decision import RateLimitExceeded, Verdict
from ..errors import ConfigError
from ..http.admission import Admission
from ..http.body import Body
from ..http.request import is_utf8
from ..keys.features import INVALID
from ..keys.forms import normalize_host
from ..rules.marks import NOWHERE, Destination
from ..runtime.blocking import is_on_event_loop
from ..wsgi.exchange import WSGIRequest, environ_key

if TYPE_CHECKING:
    from ..http.limits import HttpLimits
    from ..rules.plan import Plan

ATTRIBUTE: Final = "_ratelimit_mw"
"""The attribute of Django's request that holds its admission."""
SCOPE: Final = "scope"
"""The feature that only a throttle of REST framework provides."""
_DATA: Final = "_ratelimit_mw_data"
"""The attribute of Django's request that holds the data that REST framework has parsed."""


def wait_for(value: Any) -> Any:
    """Return the value of a function, which may be async."""
    if not inspect.isawaitable(value):
        return value
    if is_on_event_loop():
        getattr(value, "close", int)()
        problem = "an async view waits for a feature, such as the user"
        raise ConfigError(f"{problem}. Write await acheck(...) for check, and await ausage(...) for usage")
    return async_to_sync(result_of)(value)


async def result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class DjangoRequest(WSGIRequest):
    """A request over Django's own, which is ``framework_request``.

    Middleware before this one may have changed ``META``.
    """

    limits: HttpLimits
    """The rules that decide the request. A page of this package has none."""
    method = path = sent_path = ""

    def __init__(self, framework_request: Any, to: Destination = NOWHERE, may_await: bool = False) -> None:
        self.native = framework_request.META
        self.framework_request = framework_request
        self._scope = getattr(framework_request, "scope", None)
        self.method = framework_request.method or ""
        self.path = self.sent_path = framework_request.path_info or "/"
        self.to = to
        self.may_await = may_await
        """Whether features may be awaitable."""
        if getattr(framework_request, "_read_started", False) and not hasattr(framework_request, "_body"):
            self.parsed_body = _parsed_body(framework_request)

    @cached_property
    def query_values(self) -> dict[str, list[str]] | None:
        """All values; None for another charset, too: Django decodes the query in the charset of the body."""
        return super().query_values if is_utf8(self.native.get("CONTENT_TYPE", "")) else None

    @property
    def host(self) -> Any:
        """The host that Django shows to views; ``INVALID`` where a client may have written another one."""
        sent, lines = super().host, self.header_lines("x-forwarded-host")
        if not lines or not settings.USE_X_FORWARDED_HOST:
            return sent
        forwarded = normalize_host(",".join(lines)) or INVALID
        return forwarded if forwarded == sent or self.limits.settings.trusted_proxies else INVALID

    @property
    def peer(self) -> str | None:  # read here, so that a request enters one file less
        address = self.native.get("REMOTE_ADDR")
        if not address and self._scope is not None and not self._scope.get("client"):
            return ASGIRequest(self._scope).peer
        return super().peer if address == "localhost" else address or None

    @property
    def counted_path(self) -> str:
        return self.to.without_suffix(self.path, self.path_params)

    def header_lines(self, name: str) -> list[str]:
        """Return the lines that arrived. Under ASGI, ``META`` joins them, and Django reads cookies from there."""
        if self._scope is None or name == "cookie":
            value = self.native.get(environ_key(name))
            return [] if value is None else [value]
        return ASGIRequest(self._scope).header_lines(name)

    def header_pairs(self) -> list[tuple[str, str]]:
        return super().header_pairs() if self._scope is None else ASGIRequest(self._scope).header_pairs()

    wait_for = staticmethod(wait_for)

    def body(self, limit: int) -> object:
        """Read through Django, which keeps the body for the view."""
        request, length = self.framework_request, self.native.get("CONTENT_LENGTH") or ""
        django_limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # Django reads no longer body at once
        limit = limit if django_limit is None else min(limit, django_limit)
        if length and not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= limit):
            return INVALID
        if not length and _size(request) > limit:
            return INVALID
        try:
            content: bytes = request.body
        except OSError:  # the client disconnected
            return INVALID
        return INVALID if len(content) < int(length or 0) else content or None  # other code may have read the rest


class DjangoAdmission(Admission):
    """Shows all decisions together in ``request.ratelimit``, even when a throttle rejects."""

    request: DjangoRequest
    delay = 0.0
    """The seconds that an allowed request waits in a queue."""

    def __init__(self, limits: HttpLimits, request: DjangoRequest, plan: Plan, verdict: Verdict) -> None:
        framework_request = request.framework_request
        state = vars(framework_request)
        native = state.get("scope") or framework_request.META  # ``native_of`` without its call
        Admission.__init__(self, limits, request, plan, verdict, native, state)  # half the time of super()
        state[ATTRIBUTE] = self

    def build_current_request(self) -> DjangoRequest:
        before = self.request
        request = DjangoRequest(before.framework_request, before.to, before.may_await)
        request.limits, request.path_params = before.limits, before.path_params
        return request

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
        return import_module(f"{__package__}.drf_errors").APIRejection(verdict)  # type: ignore[no-any-return]

    def custom_response(self) -> Any:
        """Return what the project's function returns for the rejection; None without a function."""
        custom = self.limits.custom_rejection
        return custom and custom(self.request.framework_request, self.verdict)

    def add_headers(self, response: Any) -> None:
        """Replace the rate limit headers that the application has set."""
        headers = response.headers
        added = self.start_response(response.status_code)
        for name, value in () if self.keeps_headers(headers.items()) else added:
            headers[name] = value
        if not self.verdict.allowed and response.status_code >= 400:
            headers.setdefault("Cache-Control", "no-store")


def native_of(request: Any) -> MutableMapping[str, Any]:
    """Return the WSGI environ or the ASGI scope of a request of Django or REST framework."""
    return getattr(request, "scope", None) or request.META  # type: ignore[no-any-return]


def native_with_data(request: Any) -> MutableMapping[str, Any]:
    """Return ``native_of``, and keep the data that REST framework has parsed, for the features of ``check``."""
    keep_data(request)
    return native_of(request)


def django_user(request: Any) -> Any:
    """Return the primary key of the authenticated user; None without one, or without AuthenticationMiddleware.

    It is read only for rules that need it, because it may query the session and the database. An async stack awaits it.
    """
    framework_request = request.framework_request
    if request.may_await and hasattr(framework_request, "user"):
        return _await_key(framework_request)
    return user_key(getattr(framework_request, "user", None))


async def _await_key(framework_request: Any) -> str | None:
    if hasattr(framework_request, "auser"):
        return user_key(await framework_request.auser())
    return await sync_to_async(lambda: user_key(framework_request.user))()


def user_key(user: Any) -> str | None:
    """Return the primary key of a user; None without one."""
    return str(user.pk) if user is not None and user.is_authenticated else None


def _size(framework_request: Any) -> int:
    """Return the size of a body without a length: under ASGI Django holds all of it, under WSGI it reads none."""
    stream: Any = getattr(framework_request, "_stream", None)
    if not hasattr(framework_request, "scope") or not stream.seekable():
        return 0
    size: int = stream.seek(0, 2)
    stream.seek(0)
    return size


def keep_data(request: Any) -> None:
    """Keep the data that a request of REST framework has parsed: its parsers read the body in pieces."""
    data = vars(request).get("_full_data")
    if data is not None and not isinstance(data, type):  # the attribute is a class until then
        setattr(request._request, _DATA, data)


def _parsed_body(framework_request: Any) -> Body:
    """Return the form or data that was parsed from a body that was read in pieces. Other bodies are lost."""
    if hasattr(framework_request, "_post") and (framework_request.POST or framework_request.FILES):
        fields = ((name, value) for name, values in framework_request.POST.lists() for value in values)
        return Body.from_form(fields, framework_request.FILES)
    data = getattr(framework_request, _DATA, None)
    return Body(INVALID, "") if data is None else Body.from_data(data)
