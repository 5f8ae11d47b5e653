"""``Mount``: the arguments of ``dashboard``; ``respond``: the response to a request, which may wait for the store.

A client may see the dashboard if ``allow`` accepts it. Without ``allow``, it needs the password in the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

from ..errors import ConfigError, StoreError, url_of
from ..http.admission import ADMISSION
from ..http.request import Request
from ..http.token import CHALLENGE, has_token, start_token
from ..limiter.limiter import Limiter
from .changes import change, is_own_form, read_form, result_message, token_of
from .data import forget_store, read_data
from .page import ASSETS, STATIC, dashboard_page, message_page, read_asset, templates
from .view import parse_view

Allow = Callable[[Any], bool | Awaitable[bool]]
"""Your function of the framework's request. It may be async where the framework is."""

Views = TypeVar("Views", covariant=True)
"""The form of a dashboard that a framework takes."""

_CHANGE: Final = "change"
"""The path of forms below the mount."""
_METHODS: Final = ("GET", "HEAD")
_DATA: Final = "data.json"
_NOT_OWN: Final = (
    "The form does not come from this page, or its cookie is gone. Allow cookies, go back, load the page again and send"
    " the form once more. Behind a proxy without HTTPS, let the proxy keep the header Host."
)
_HTML: Final = "text/html; charset=utf-8"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_log = logging.getLogger("ratelimit_mw")


class Mount(NamedTuple):
    """The arguments of ``dashboard``, which are the same for every framework. Without a limiter, the framework's."""

    limiter: Limiter | None
    allow: Allow | None
    writes: bool

    def check(self) -> Mount:
        """Return it. Without ``allow``, log the password.

        Raises:
            ConfigError: An argument is invalid.
            MissingExtraError: The library for the templates is not installed.
        """
        if self.limiter is not None and not isinstance(self.limiter, Limiter):
            raise ConfigError(f"expected a Limiter; got {self.limiter!r}", "limiter")
        if self.allow is not None and not callable(self.allow):
            raise ConfigError(f"expected a function of the request; got {self.allow!r}", "allow")
        if not isinstance(self.writes, bool):
            raise ConfigError(f"expected True or False; got {self.writes!r}", "writes")
        templates()
        if self.allow is None:
            _log_password()
        return self

    def ask(self, request: Request) -> bool | Awaitable[bool]:
        """Return the result of ``allow``, or its awaitable. Without a function, the request needs the password."""
        if self.allow is None:
            return has_token(request, start_token(), "bearer", "basic")
        return self.allow(request.for_functions)


class Dashboard(Protocol[Views]):
    """The function ``dashboard`` of a framework."""

    def __call__(
        self, limiter: Limiter | None = None, *, allow: Allow | None = None, writes: bool = False
    ) -> Views: ...


def dashboard_by(build: Callable[[Mount], Views]) -> Dashboard[Views]:
    """Return the function ``dashboard`` of a framework, which builds its views."""

    def dashboard(limiter: Limiter | None = None, *, allow: Allow | None = None, writes: bool = False) -> Views:
        """Return the dashboard to mount in ASGI, to register as a blueprint in Flask, or to include in Django.

        Limits apply to it only where a rule names its path or view.

        Args:
            limiter: The limiter to show. Default: that of the middleware or extension which handles the request.
            allow: Your function of the framework's request, sync or async, which returns whether the client may see the
                dashboard. Without it, a browser asks for the password that the log has at the start.
            writes: Whether those who see the dashboard may also reset a client, lift its ban and change its limits.

        Returns:
            The ASGI application, the blueprint or the URL patterns.

        Raises:
            ConfigError: An argument is invalid.
            MissingExtraError: The extra ``dashboard`` is not installed.

        Example:
            app.mount("/ratelimit", dashboard(limiter, allow=is_staff))
        """
        return build(Mount(limiter, allow, writes).check())

    return dashboard


@cache
def _log_password() -> None:
    _log.warning(
        "the dashboard has no allow. Until this process ends, it opens with any user name and this password:"
        " %s (see %s)",
        start_token(),
        url_of("how-to/operate/log-messages#dashboard-password"),
    )


def is_open(answer: object, native: Mapping[str, Any]) -> bool:
    """Return whether an answer opens the dashboard. A coroutine, or a response, must not.

    The counts that the dashboard shows leave out a request that opens it: an open page sends one every few seconds.

    Raises:
        ConfigError: The answer is neither true nor false.
    """
    if answer is not True and answer:
        raise ConfigError(f"expected True or False from the function; got {type(answer).__name__}", "allow")
    if answer and (admission := native.get(ADMISSION)) is not None:
        admission.skip_event()
    return bool(answer)


class PageResponse(NamedTuple):
    """A response. The headers include ``Content-Type`` and ``Content-Length``."""

    status: int
    headers: dict[str, str]
    body: bytes


def respond(mount: Mount, limiter: Limiter, request: Request, path: str, opens: bool) -> PageResponse:
    """Return the response to a request.

    Args:
        mount: The arguments of ``dashboard``.
        limiter: The limiter to show.
        request: The request.
        path: The path below the mount, decoded, without a slash at its start: "" for the page.
        opens: Whether the client may see the dashboard.

    Returns:
        The response. The body is empty for ``HEAD``.
    """
    is_change = mount.writes and path == _CHANGE
    methods = ("POST",) if is_change else _METHODS
    if request.method not in methods:
        what = b"Send a form of the page.\n" if is_change else b"This page is read-only: use GET.\n"
        return _build(405, "text/plain", what, Allow=", ".join(methods))
    if is_change:
        return _change(limiter, request) if opens else _closed(mount, path)
    response = _find_asset(path) or (_show(mount, limiter, request, path) if opens else _closed(mount, path))
    return response if request.method == "GET" else response._replace(body=b"")


def redirect_into(path: str, query: str) -> PageResponse:
    """Return a redirect to the mount with a trailing slash, which the relative URLs of the page need.

    The location is relative: a proxy may have its own prefix.

    >>> redirect_into("/a b/limits", "range=week").headers["Location"]
    './limits/?range=week'
    """
    location = f"./{quote(path.rpartition('/')[2])}/" + (f"?{quote(query, safe='=&%+')}" if query else "")
    return _build(307, "text/plain", b"", Location=location)


def _show(mount: Mount, limiter: Limiter, request: Request, path: str) -> PageResponse:
    if path not in ("", _DATA):
        return _build(404, "text/plain", b"There is no such page. Open the dashboard itself.\n")
    try:
        view = parse_view(request.query_string)
        data = read_data(limiter, view)
    except ConfigError as error:
        return _problem(400, path, "Cannot show this view", str(error))
    if path == _DATA:
        return _json(200, data)
    token, cookie = token_of(request) if mount.writes else (None, "")
    page = dashboard_page(data, view, token, result_message(request.query_string))
    return _build(200, _HTML, page, **({"Set_Cookie": cookie} if cookie else {}))


def _change(limiter: Limiter, request: Request) -> PageResponse:
    """Run the operation of a form, and redirect to the page, which shows the result."""
    try:
        form = read_form(request)
        if not is_own_form(request, form):
            return _problem(403, _CHANGE, "Nothing was changed", _NOT_OWN)
        view, is_done = parse_view(request.query_string), change(limiter, form)
    except ConfigError as error:
        return _problem(400, _CHANGE, "Nothing was changed", str(error))
    except StoreError as error:
        return _problem(503, _CHANGE, "The change failed", str(error))
    forget_store(limiter)
    query = urlencode([*view.fields, ("done" if is_done else "unchanged", form["operation"])])
    return _build(303, "text/plain", b"", Location=f"./?{query}")


def _closed(mount: Mount, path: str) -> PageResponse:
    """Return the response to a client that may not see the dashboard. The advice is for developers."""
    has_check = mount.allow is not None
    status, headers = (403, {}) if has_check else (401, {"WWW_Authenticate": CHALLENGE})
    if path == _DATA:
        return _json(status, {"error": "This dashboard is closed to you."}, **headers)
    return _build(status, _HTML, message_page("This dashboard is closed", has_check=has_check), **headers)


def _problem(status: int, path: str, title: str, problem: str) -> PageResponse:
    """Return why there is no page; as JSON for the programs that read ``data.json``."""
    if path == _DATA:
        return _json(status, {"error": problem})
    return _build(status, _HTML, message_page(title, problem, "./" if path == _CHANGE else "?"))


def _find_asset(path: str) -> PageResponse | None:
    """Return the file of a path below the mount; None for any other path."""
    name = path.removeprefix(STATIC)
    if name not in ASSETS:
        return None
    return _build(200, ASSETS[name], read_asset(name), "public, max-age=31536000, immutable")


def _build(status: int, content_type: str, body: bytes, cache: str = "no-store", **headers: str) -> PageResponse:
    """Return a response with the headers of every response."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sizes = {"Content-Type": content_type, "Content-Length": str(len(body)), "Cache-Control": cache}
    return PageResponse(status, {**sizes, **named, **_SECURITY}, body)


def _json(status: int, content: dict[str, Any], **headers: str) -> PageResponse:
    return _build(status, "application/json", f"{json.dumps(content, default=str)}\n".encode(), **headers)
