"""An ASGI scope as a request that features are read from, and the response to it."""

import inspect
import sys
from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import Any, Final

from ..decision import RateLimitExceeded, Verdict, rejection_of
from ..http.admission import Admission
from ..http.client_ip import DISCONNECTED
from ..http.headers import with_headers
from ..http.limits import HttpLimiter, HttpLimits
from ..http.rejection import Rejection
from ..http.request import Request, still_encoded
from ..http.warnings import warn_of_user
from ..rules.marks import NOWHERE
from ..rules.plan import Plan
from .body import ReadAhead
from .rejections import http_error, own_response
from .router import path_below
from .types import Message, Receive, Scope, Send

BODY: Final = "ratelimit_mw.body"
"""The key of the scope that holds the body, once it was read."""
_NO_USER: Final = "nothing outside RateLimitMiddleware has set the user. Add AuthenticationMiddleware outside it"
_PERCENT: Final = ord("%")  # a number, because "in" is eight times as fast as with bytes
_NO_STORE: Final = (b"cache-control", b"no-store")
_STARTS: Final = {"http.response.start", "websocket.accept", "websocket.http.response.start"}
_ROUTE: Final = ("endpoint", "path_params", "route", "router")  # which routers add
_PLACE: Final = {"path": "/", "raw_path": b"", "root_path": ""}  # which mounts change


class ASGIRequest(Request):
    """A request over an ASGI scope."""

    index: Any
    """The ``RouteIndex`` of the application; None where its routes are not known."""
    ahead: ReadAhead | None
    """The body that is read before the application runs."""

    def __init__(self, scope: Scope) -> None:
        self.native = scope
        self.index = None  # these are read faster on the instance than on its class
        self.to = NOWHERE
        self.ahead = None

    @cached_property
    def for_functions(self) -> Any:
        """The request of Starlette or FastAPI, without a body to read; this one where none of them is used."""
        framework = sys.modules.get("starlette.applications")
        if self.index is None and not (framework and isinstance(self.native.get("app"), framework.Starlette)):
            return self  # another framework, such as Litestar, keeps its application in the scope too
        from starlette import requests

        return (requests.Request if self.native["type"] == "http" else requests.HTTPConnection)(self.native)

    @property
    def method(self) -> str:
        return self.native["method"].upper()  # type: ignore[no-any-return]

    @cached_property
    def path_params(self) -> Mapping[str, object]:  # type: ignore[override]
        return {} if self.index is None else self.index.params(self)

    @property
    def path(self) -> str:
        scope = self.native
        root: str = scope.get("root_path", "")
        if not root:
            return scope["path"] or "/"
        # Starlette keeps the server's root path apart from those of its mounts, which rules include.
        return path_below(scope.get("app_root_path", root), scope["path"]) or "/"

    @property
    def sent_path(self) -> str:
        scope = self.native
        path, raw = scope["path"] or "/", scope.get("raw_path") or b""
        is_plain = self.to.is_exact or (_PERCENT not in raw and "\ufffd" not in path)
        if is_plain and not scope.get("root_path"):
            return path
        return still_encoded(raw.partition(b"?")[0], path, self.path)

    @property
    def peer(self) -> str | None:
        if client := self.native.get("client"):
            return client[0]  # type: ignore[no-any-return]
        server = self.native.get("server")
        return DISCONNECTED if server and isinstance(server[1], int) else None  # a Unix socket has no port

    @property
    def query_string(self) -> str:
        return self.native.get("query_string", b"").decode("latin-1")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        wanted = name.encode("latin-1", "replace")
        return [value.decode("latin-1") for key, value in self.native["headers"] if key.lower() == wanted]

    @property
    def accept(self) -> str:
        text = b""
        for key, value in self.native["headers"]:  # half the time of a comprehension
            if key.lower() == b"accept":
                text = b"%b, %b" % (text, value) if text else value
        return text.decode("latin-1")

    def header_pairs(self) -> list[tuple[str, str]]:
        return [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in self.native["headers"]]

    @property
    def has_body(self) -> bool:
        return BODY in self.native or self.native["type"] != "http"

    def body(self, limit: int) -> object:
        return self.native[BODY] if self.native["type"] == "http" else None


def asgi_user(request: Request, http_limiter: HttpLimiter) -> Any:
    """Return the user of Starlette's AuthenticationMiddleware: its identity, else its display name."""
    user = request.native.get("user")
    if "user" not in request.native:
        warn_of_user(http_limiter, _NO_USER)
    if not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "display_name"):
        try:
            if value := getattr(user, name, None):
                return value
        except NotImplementedError:
            continue  # Starlette's BaseUser leaves both to its subclasses
    return None


class ASGIAdmission(Admission):
    """An admission whose response is sent over ASGI."""

    request: ASGIRequest

    def __init__(
        self, limits: HttpLimits, request: ASGIRequest, plan: Plan, verdict: Verdict, server_scope: Scope, send: Send
    ) -> None:
        scope = dict(server_scope)  # half the time of {**server_scope}
        if BODY in request.native:
            scope[BODY] = request.native[BODY]
        state = scope.get("state")
        if state is None:
            state = scope["state"] = {}
        Admission.__init__(self, limits, request, plan, verdict, scope, state)  # half the time of super()
        self.server_scope, self.server_send = server_scope, send
        """The ``scope`` and the ``send`` of the server."""

    def build_current_request(self) -> ASGIRequest:
        """Return the request with what the layers inside have added to its scope. Mounts have changed its path."""
        before = self.request
        place = {name: before.native.get(name, none) for name, none in _PLACE.items()}
        request = ASGIRequest({"method": before.method, **self.native, **place})  # a WebSocket's scope has no method
        request.index, request.to = before.index, before.to
        request.parsed_body = before.parsed_body
        return request

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        return http_error(verdict)

    def leave_scope(self) -> None:
        """Leave the scope of the application, which has this admission: the garbage collector gets no cycle."""
        if self.status is None:  # no response has shown it
            self._show_route()
        self.native = self.server_scope

    def _show_route(self) -> None:
        """Show the route of the application to middleware outside, such as metrics, in the scope that it knows."""
        for name in _ROUTE:
            if name in self.native:
                self.server_scope[name] = self.native[name]

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the application, with the rate limit headers at the start of the response."""
        if message["type"] in _STARTS:
            if "endpoint" in self.native:
                self._show_route()
            added, names = self.start_response(message.get("status", 101)), self.limits.writer.names
            if self.status == 429 or not self.verdict.allowed:
                message = {**message, "headers": list(message.get("headers") or ())}  # an iterator is read once
            if not self.verdict.allowed:
                names = frozenset(name for name, _ in added)
                added = [_NO_STORE] * self.may_be_stored(message["headers"]) + added
            if added and not (self.status == 429 and self.keeps_headers(message["headers"])):
                message = with_headers(message, added, names)
        return self.server_send(message)

    async def handle(self, error: BaseException, receive: Receive) -> bool:
        """End the admission after an error. Return whether a rejection was sent for it."""
        self.note_error(error)
        if rejection := rejection_of(error):
            has_started = self.status is not None
            try:
                if not has_started:
                    self.verdict = rejection.verdict
                    await self.reject(receive)
            finally:
                await self.aend(self.status or 500)
            return not has_started
        if isinstance(error, GeneratorExit):
            self.end(None)  # a coroutine that is closed cannot await
        else:  # where the server stops, the outcome is not known: only slots are returned
            await self.aend((self.status or 500) if isinstance(error, Exception) else None)
        return False

    async def reject(self, receive: Receive, send: Send | None = None) -> None:
        """Send your own response to a rejection, else that of the application's error handler, else the package's.

        Code of the application sends it by its own ``send``.
        """
        index, custom = self.request.index, None
        if self.limits.custom_rejection is not None or (index is not None and index.handler_app is not None):
            custom = await self._custom_response(receive)
        if not custom:
            prepared, send = self.rejection(), send or self.server_send
            response = prepared.response
            headers = prepared.headers + self.start_response(response.status)
        elif isinstance(custom, Rejection):
            response, send = custom, send or self.send
            headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in custom.headers]
        else:
            await custom(self.native, receive, send or self.send)
            return
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if self.request.native["method"].upper() == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _custom_response(self, receive: Receive) -> Any:
        """Return the response of your function, else that of an error handler; None where none of them responds."""
        request, verdict = self.request, self.verdict
        if self.limits.custom_rejection is not None:
            response = self.limits.custom_rejection(request.for_functions, verdict)
            return await response if inspect.isawaitable(response) else response
        if self.native["type"] != "http":
            return None
        return await own_response(request.index.handler_app, verdict, self.native, receive)
