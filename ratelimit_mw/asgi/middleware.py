"""ASGI middleware. It translates the protocol. Rules, counting and header values are not its duty.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from ..decision import Verdict
from ..errors import RateLimitExceeded, rejection_of
from ..http.admission import Admission
from ..http.features import OwnFeatures
from ..http.headers import with_headers
from ..http.limits import DECIDED, HttpLimiter, HttpLimits
from ..http.rejection import Rejection
from ..http.routes import check_no_views
from ..limiter.limiter import Limiter
from ..rules.guard import get_current, set_current
from ..rules.plan import Plan
from ..settings import HttpOptions, SettingsSource
from .body import needs_body, read_body
from .connection import adecide_connected, respond_to_nobody
from .dependencies import DependencyDecisions
from .error_handlers import RejectionHandler, http_error
from .request import BODY, ASGIApp, ASGIRequest, Message, Receive, Scope, Send, asgi_user
from .routes.index import RouteIndexes
from .startup import BrokenMiddleware, is_built_by_starlette, lifespan_sender, stands_alone
from .websocket import WebSocketConnection

_STARTS = {"http.response.start", "websocket.accept", "websocket.http.response.start"}
_PERCENT = ord("%")  # a number, because "in" is eight times as fast as with bytes
_PLACE = {"path": "/", "raw_path": b"", "root_path": ""}  # which mounts change
_ERROR = 500  # the status that servers send when an application raises


class RateLimitMiddleware:
    """Limit the HTTP requests and WebSockets of an ASGI application.

    The application finds the verdict in ``scope["state"]["ratelimit"]``. When the server starts, or at the first
    request, the routes of Starlette and FastAPI are read for the limits that decorators have marked.

    Args:
        app: The application.
        settings: A settings file, a dictionary or ``Settings``. Give either ``settings`` or ``limiter``.
        limiter: A limiter that you have built.
        features: Your functions of the framework's request by feature, sync or async, or one that returns a mapping.
        rejection: Your function of the same request and the verdict. It returns a ``Rejection`` or an ASGI app.
        before_user: Whether a middleware inside authentication has the same ``limiter``. This one then decides only the
            rules that need no user.
        **options: Settings such as ``limits``, ``store`` and ``trusted_proxies``, which override those of ``settings``.

    Raises:
        ConfigError: An argument or a rule cannot work. Under Starlette it is raised when the application starts.

    Example:
        app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
    """

    limits: HttpLimiter
    routes: RouteIndexes | BrokenMiddleware

    def __init__(
        self,
        app: ASGIApp,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: OwnFeatures | None = None,
        rejection: Callable[[ASGIRequest, Verdict], Any] | None = None,
        before_user: bool = False,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        self.before_user = before_user
        try:
            adapter = {"user": lambda request: asgi_user(request, self.limits)}
            arguments = settings, limiter, features or {}, rejection, adapter, options
            self.limits = HttpLimiter(*arguments, routes=True, before_user=before_user)
            if stands_alone(app) and not before_user:
                self.limits.adopt(check=lambda limits: check_no_views(limits.rules))
        except Exception as error:
            if not is_built_by_starlette():
                raise
            self.routes = BrokenMiddleware(error)
            return
        self.limiter = self.limits.limiter
        self.routes = RouteIndexes(app, self.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - a call would cost every request
        if scope["type"] != "http":
            await self._run_other(scope, receive, send)
            return
        request = ASGIRequest(scope)
        if self.routes.has_routes:
            self.routes.match(request)
        limits = self.limits.in_force
        if limits.watch is not None:
            limits = await limits.aat()
        plan = _plan(limits, request, scope)
        admission, before = None, get_current()
        try:
            if limits.reader.reads_bodies and BODY not in scope and needs_body(limits, plan, request):
                receive = await read_body(limits, request, receive)
            if limits.may_wait:
                decided, receive = await adecide_connected(limits, plan, request, receive)
                if decided is None:
                    await respond_to_nobody(send)
                    return
                verdict = decided
            else:
                verdict = limits.limiter.decide(plan, limits.reader.read(plan, request), None, True, request)
            admission = _admit(limits, plan, request, verdict, request.native, send)
            if verdict.allowed:
                if plan.may_delay and verdict.delay:
                    await asyncio.sleep(verdict.delay)
                await self.app(admission.native, receive, admission.send)
            else:
                await admission.reject(receive, send)
        except BaseException as error:
            if admission is None or not await admission.handle(error, receive, send):
                raise
        finally:
            if request.ahead is not None:
                request.ahead.close()
            if admission is not None:
                set_current(before)
                admission.native = scope  # its own scope has the admission: no cycle is left to the garbage collector
        if admission.first is not None:
            return
        verdict.settler = limits.limiter  # a cost that is stated from now on is settled at once
        admission.has_ended = True
        if plan.needs_settlement or verdict.open_receipt is not None or admission.added is not None:
            await admission.aend(admission.status or _ERROR)
        elif limits.is_observed:
            admission.observe()  # ``aend`` without its call

    def _run_other(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Run the application for a WebSocket, the lifespan, or a type of a later version of ASGI."""
        if scope["type"] == "websocket":
            return self._websocket(scope, receive, send)
        return self.app(scope, receive, lifespan_sender(self, scope, send) if scope["type"] == "lifespan" else send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide a handshake as a GET."""
        request, before = ASGIRequest({**scope, "method": "GET"}), get_current()
        if self.routes.has_routes:
            self.routes.match(request)
        limits = self.limits.in_force
        if limits.watch is not None:
            limits = await limits.aat()
        plan = _plan(limits, request, scope)
        verdict, receive = await adecide_connected(limits, plan, request, receive)
        if verdict is None:
            return
        admission = _admit(limits, plan, request, verdict, scope, send)
        connection = WebSocketConnection(admission, receive)
        try:
            await connection.serve(self.app)
        finally:
            set_current(before)


def _plan(limits: HttpLimits, request: ASGIRequest, scope: Scope) -> Plan:
    """Return the rules that no outer middleware of this limiter has decided."""
    match, native = request.match, request.native
    rules, path = limits.rules, ""
    if rules.needs_path:
        path = native["path"]
        encoded = not match.is_exact and _PERCENT in (native.get("raw_path") or b"")
        if encoded or not path or native.get("root_path"):
            path = request.sent_path
    plan = rules.plan(native["method"], path, request.host if rules.needs_host else "", match, request)
    if DECIDED in scope or limits.before_user:
        return limits.undecided(plan, scope, limits.before_user)
    return plan


def _admit(
    limits: HttpLimits, plan: Plan, request: ASGIRequest, verdict: Verdict, scope: Scope, send: Send
) -> ASGIAdmission:
    scope = dict(scope)  # half the time of {**scope}
    state = scope.get("state")
    if state is None:
        state = scope["state"] = {}
    admission = ASGIAdmission(limits, request, plan, verdict, scope, state)
    admission.server_send = send
    if request.match.marks is None:
        set_current(admission)  # ``enter`` without its call
    else:
        admission.enter(request.match.marks)
    return admission


class ASGIAdmission(Admission):
    """An admission whose response is sent over ASGI."""

    request: ASGIRequest
    server_send: Send
    """The ``send`` of the server."""
    dependencies: DependencyDecisions | None = None
    """The decisions on dependency limits, once there are any."""

    def renew(self) -> ASGIRequest:
        """The request with what the layers inside have added to its scope. Mounts have changed its path."""
        before = self.request
        place = {name: before.native.get(name, none) for name, none in _PLACE.items()}
        request = ASGIRequest({"method": before.method, **self.native, **place})  # a WebSocket's scope has no method
        request.index, request.match, request.endpoint = before.index, before.match, before.endpoint
        request.parsed_body = before.parsed_body
        return request

    def show(self) -> None:
        self.native.setdefault("state", {})["ratelimit"] = self.shown  # after the response, that of the server

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        return http_error(verdict)

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the application, with the rate limit headers at the start of the response."""
        if message["type"] in _STARTS:
            request = self.request
            if request.index is not None and request.match.target is not self.native.get("endpoint"):
                request.index.compare(request.match, self.native.get("endpoint"))
            self.status = message.get("status", 101)
            if self.first is not None:
                self.first.verdict = self.verdict
                return self.server_send(message)
            limits, verdict = self.limits, self.verdict
            if self.counts_outcomes:
                if self.true_costs:
                    message = self._without_costs(message)
                verdict = verdict.after(self.status)
            added = self._headers or limits.writer.headers(verdict)
            if added and not (self.status == 429 and self.keeps_headers(message.get("headers"))):
                names = limits.writer.names if verdict.allowed else {name for name, _ in added}
                message = with_headers(message, added, names)
        return self.server_send(message)

    def _without_costs(self, message: Message) -> Message:
        """State the true costs in a message. Return it without the headers that the client must not receive."""
        headers = list(message.get("headers") or ())
        names = {name.encode("latin-1") for name in self.read_costs(headers)}
        return with_headers({**message, "headers": headers}, [], names)

    async def handle(self, error: BaseException, receive: Receive, send: Send) -> bool:
        """End the admission after an error. Return whether a rejection was sent for it."""
        if rejection := rejection_of(error):
            has_started = self.status is not None
            try:
                if not has_started:
                    self.verdict = rejection.verdict
                    await self.reject(receive, send)
            finally:
                await self.aend(self.status or _ERROR)
            return not has_started
        if isinstance(error, GeneratorExit):
            self.end(None)  # a coroutine that is closed cannot await
        else:  # where the server stops, the outcome is not known: only slots are returned
            await self.aend((self.status or _ERROR) if isinstance(error, Exception) else None)
        return False

    async def reject(self, receive: Receive, send: Send, handler: RejectionHandler | None = None) -> None:
        """Send your own response to a rejection, else that of the application's error handler, else the package's."""
        request, reject = self.request, self.limits.reject
        if request.index is not None and self.native["type"] == "http":
            handler = handler or request.index.handler
        if reject is not None:
            response = reject(request.own, self.verdict)
            if inspect.isawaitable(response):
                response = await response
        else:
            response = (handler and handler(self.verdict)) or self.rejection()
        added = self.headers(self.verdict.status)
        names = {name for name, _ in added}

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] not in _STARTS:
                return send(message)
            self.status = message["status"]
            return send(with_headers(message, added, names))

        if isinstance(response, Rejection):
            headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
            await send_with_headers({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else response.body})
            return
        await response(self.native, receive, send_with_headers)
