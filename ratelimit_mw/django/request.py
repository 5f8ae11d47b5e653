"""A Django request as features are read from it, the same under WSGI and ASGI."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings

from ..asgi.request import ASGIRequest
from ..http.body import Body
from ..http.request import is_utf8
from ..keys.features import INVALID
from ..keys.forms import normalize_host
from ..rules.marks import Destination, ViewMarks
from ..wsgi.exchange import WSGIRequest

if TYPE_CHECKING:
    from ..http.limits import HttpLimits

SCOPE: Final = "scope"
"""The feature that only a throttle of REST framework provides."""
THROTTLE: Final = "throttle_key"
"""The feature with the key that ``get_cache_key`` of your own throttle returns."""
_DATA: Final = "_ratelimit_mw_data"
"""The attribute of Django's request that holds the data that REST framework has parsed."""


class DjangoRequest(WSGIRequest):
    """A request over Django's own, which is ``framework_request``.

    Middleware before this one may have changed ``META``.
    """

    limits: HttpLimits
    """The rules that decide the request. A page of this package has none."""
    to = Destination()
    """Where the request goes, with the marks of the view."""

    def __init__(self, framework_request: Any, may_await: bool = False) -> None:
        super().__init__(framework_request.META)
        self.framework_request = framework_request
        self.may_await = may_await
        """Whether features may be awaitable."""
        if getattr(framework_request, "_read_started", False) and not hasattr(framework_request, "_body"):
            self.parsed_body = _parsed_body(framework_request)

    def at_place_of(self, before: DjangoRequest) -> DjangoRequest:
        """Return this request with the route that was found for the same request before."""
        self.limits, self.to = before.limits, before.to
        self.endpoint, self.path_params = before.endpoint, before.path_params
        return self

    @cached_property
    def query_values(self) -> dict[str, list[str]] | None:
        """None for another charset, too: Django decodes the query in the charset of the body."""
        return super().query_values if is_utf8(self.native.get("CONTENT_TYPE", "")) else None

    @property
    def server_data(self) -> MutableMapping[str, Any]:
        """The WSGI environ or the ASGI scope, which other middleware sees."""
        return server_data(self.framework_request)

    @property
    def host(self) -> Any:
        """The host that Django shows to views; ``INVALID`` where a client may have written another one."""
        sent, lines = super().host, self.header_lines("x-forwarded-host")
        if not lines or not settings.USE_X_FORWARDED_HOST:
            return sent
        forwarded = normalize_host(",".join(lines)) or INVALID
        return forwarded if forwarded == sent or self.limits.settings.trusted_proxies else INVALID

    @property
    def method(self) -> str:
        return self.framework_request.method or ""

    @property
    def view(self) -> str:  # type: ignore[override]
        return self.to.function

    @property
    def marks(self) -> ViewMarks:
        return self.to.marks or ViewMarks()

    @property
    def path(self) -> str:
        return self.framework_request.path_info or "/"

    @property
    def sent_path(self) -> str:
        return self.path

    @property
    def counted_path(self) -> str:
        return self.to.without_suffix(self.path, self.path_params)

    def header_lines(self, name: str) -> list[str]:
        """Return the lines that arrived. Under ASGI, ``META`` joins them.

        Old releases of Django take an underscore in a name for a dash. Cookies are read from the joined lines, as
        Django reads them.
        """
        scope = getattr(self.framework_request, "scope", None)
        in_meta = super().header_lines(name)
        if scope is None or name == "cookie":
            return in_meta
        sent = [
            text.decode("latin-1") for other, text in scope["headers"] if other.replace(b"_", b"-") == name.encode()
        ]
        return sent if [",".join(sent)] == in_meta else ASGIRequest(scope).header_lines(name)

    def proxy_lines(self, name: str) -> list[str]:
        scope = getattr(self.framework_request, "scope", None)
        return super().proxy_lines(name) if scope is None else ASGIRequest(scope).header_lines(name)

    def header_names(self) -> list[str]:
        scope = getattr(self.framework_request, "scope", None)
        return super().header_names() if scope is None else ASGIRequest(scope).header_names()

    def body(self, limit: int) -> object:
        """Read through Django, which keeps the body for the view."""
        native = self.framework_request
        django_limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # Django reads no longer body at once
        limit = limit if django_limit is None else min(limit, django_limit)
        header = native.META.get("CONTENT_LENGTH") or ""
        if header and not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= limit):
            return INVALID
        if not header and _size(native) > limit:
            return INVALID
        try:
            return native.body or None
        except OSError:  # the client disconnected, or sent another length than announced
            return INVALID


def server_data(request: Any) -> MutableMapping[str, Any]:
    """Return the WSGI environ or the ASGI scope of a request of Django or REST framework."""
    return getattr(request, "scope", None) or request.META  # type: ignore[no-any-return]


def data_of(request: Any) -> MutableMapping[str, Any]:
    """Return ``server_data``, and keep the data that REST framework has parsed, for the features of ``check``."""
    keep_data(request)
    return server_data(request)


def django_user(request: Any) -> Any:
    """Return the primary key of the authenticated user; None without one, or without AuthenticationMiddleware.

    It is read only for rules that need it, because it may query the session and the database. An async stack awaits it.
    """
    native = request.framework_request
    if not request.may_await or not hasattr(native, "user"):
        return user_key(getattr(native, "user", None))
    return _await_key(native.auser()) if hasattr(native, "auser") else sync_to_async(lambda: user_key(native.user))()


async def _await_key(user: Any) -> str | None:
    return user_key(await user)


def user_key(user: Any) -> str | None:
    """Return the primary key of a user; None without one."""
    return str(user.pk) if user is not None and user.is_authenticated else None


def _size(native: Any) -> int:
    """Return the size of a body without a length: under ASGI Django holds all of it, under WSGI it reads none."""
    stream: Any = getattr(native, "_stream", None)
    if not hasattr(native, "scope") or not stream.seekable():
        return 0
    size: int = stream.seek(0, 2)
    stream.seek(0)
    return size


def keep_data(request: Any) -> None:
    """Keep the data that a request of REST framework has parsed: its parsers read the body in pieces."""
    data = vars(request).get("_full_data")
    if data is not None and not isinstance(data, type):  # the attribute is a class until then
        setattr(request._request, _DATA, data)


def _parsed_body(native: Any) -> Body:
    """Return the form or data that was parsed from a body that was read in pieces. Other bodies are lost."""
    if hasattr(native, "_post") and (native.POST or native.FILES):
        fields = ((name, value) for name, values in native.POST.lists() for value in values)
        return Body.from_form(fields, native.FILES)
    data = getattr(native, _DATA, None)
    return Body(INVALID, "") if data is None else Body.from_data(data)
