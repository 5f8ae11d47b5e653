"""ASGI middleware. It translates the protocol. Rules, counting and header values are not its duty.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from inspect import isfunction
from typing import Any, Final, Unpack

from ..clock import monotonic
from ..decision import Verdict
from ..errors import ConfigError
from ..http.admission import ADMISSION, undecided
from ..http.functions import FeatureFunctions
from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import check_no_views
from ..limiter.limiter import Limiter
from ..rules.marks import get_admission, set_admission
from ..rules.plan import Plan
from ..settings import HttpOptions, SettingsSource
from .body import ReadAhead, without_upload
from .request import BODY, ASGIAdmission, ASGIRequest, asgi_user
from .router import is_of_framework, layers_of
from .routes import Applications, BrokenApplications
from .types import ASGIApp, Message, Receive, Scope, Send
from .websocket import WebSocketAdmission

_ENDS: Final = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")


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

    http_limiter: HttpLimiter
    routes: Applications | BrokenApplications

    def __init__(
        self,
        app: ASGIApp,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: FeatureFunctions | None = None,
        rejection: Callable[[Any, Verdict], Any] | None = None,
        before_user: bool = False,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        self.before_user = before_user
        try:
            user = {"user": lambda request: asgi_user(request, self.http_limiter)}
            self.http_limiter = http_limiter = HttpLimiter(
                settings, limiter, features or {}, rejection, user, options, before_user=before_user, encodes=True
            )
            if isfunction(app) and not (before_user or is_of_framework(app)):  # others may get routes until they start
                http_limiter.adopt(
                    check=lambda limits: check_no_views(limits.rules, http_limiter.functions.may_provide)
                )
        except Exception as error:
            # Starlette builds its middleware at its first call. A server takes an error there for an application
            # without lifespan, and then responds to each request with 500.
            if all(type(layer).__name__ != "ExceptionMiddleware" for layer in layers_of(app)):
                raise
            self.routes = BrokenApplications(error)
            return
        self.limiter = http_limiter.limiter
        self.routes = Applications(app, http_limiter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - a call would cost every request
        is_http = scope["type"] == "http"
        if not is_http and scope["type"] != "websocket":
            await self.app(scope, receive, self._lifespan_sender(scope, send) if scope["type"] == "lifespan" else send)
            return
        request = ASGIRequest(scope if is_http else {**scope, "method": "GET"})
        if self.routes.has_routes:
            self.routes.match(request)
        limits = self.http_limiter.in_force
        if limits.watch is not None and monotonic() >= limits.watch.due_at:
            await limits.watch.alook()
            limits = self.http_limiter.in_force
        rules, before = limits.rules, get_admission()
        path = request.sent_path if rules.needs_path else ""  # ``plan_for_request`` without its call
        host = request.host if rules.needs_host else ""
        plan = rules.plan(request.native["method"], path, host, request.to, request)
        if ADMISSION in scope or limits.before_user:
            plan = undecided(plan, limits, scope, limits.before_user)
        admission: ASGIAdmission | None = None
        try:
            if limits.decides_at_once:
                verdict = limits.limiter.decide(plan, limits.reader.read(plan, request), None, True, request)
            else:
                decided, receive = await _decide(limits, plan, request, receive)
                if decided is None:
                    if is_http:
                        await _respond_to_nobody(send)
                    return
                verdict = decided
            if is_http:
                admission = ASGIAdmission(limits, request, plan, verdict, scope, send)
            else:
                admission = connection = WebSocketAdmission(limits, request, plan, verdict, scope, send)
                receive = connection.open(receive)
            set_admission(admission)
            if verdict.allowed:
                if plan.may_delay and verdict.delay:
                    await asyncio.sleep(verdict.delay)
                if is_http and verdict.running is not None:
                    receive = without_upload(verdict.running, receive)
                await self.app(admission.native, receive, admission.send)
            else:
                await admission.reject(receive)
        except BaseException as error:
            if admission is None or not await admission.handle(error, receive):
                raise
        finally:
            if request.ahead is not None:
                request.ahead.close()
            if admission is not None:
                set_admission(before)
                admission.leave_scope()
        if due := admission.take_due():
            await admission.settle(due, admission.status)  # None: nothing was sent, such as to a client that has left
        elif limits.is_observed:
            admission.observe()

    def _lifespan_sender(self, scope: Scope, send: Send) -> Send:
        """Return a ``send`` that reads the routes and opens the limiter at the start, and closes it at the end."""

        async def send_in_time(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    self.routes.index_of(scope)
                except ConfigError as error:
                    if "app" not in scope:  # Starlette reports the error to the server
                        await send_in_time({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await self.limiter.astart()
            if message["type"] in _ENDS and not isinstance(self.routes, BrokenApplications):
                await self.limiter.aclose()
            await send(message)

        return send_in_time


async def _decide(
    limits: HttpLimits, plan: Plan, request: ASGIRequest, receive: Receive
) -> tuple[Verdict | None, Receive]:
    """Return the verdict, None when the client left before, and the ``receive`` for the application.

    It repeats the body, where a rule reads it. A request that waits for a slot ends when its client leaves.
    """
    if limits.reader.reads_bodies and not request.has_body and limits.reader.needs_body(plan):
        ahead = _read_ahead(limits, request, receive)
        receive = ahead.receive
        request.native = {**request.native, BODY: await ahead.read()}
    if not plan.waits:
        return await limits.adecide(plan, request), receive
    ahead = _read_ahead(limits, request, receive)
    return await ahead.run_connected(limits.adecide(plan, request)), ahead.receive


def _read_ahead(limits: HttpLimits, request: ASGIRequest, receive: Receive) -> ReadAhead:
    if request.ahead is None:
        request.ahead = ReadAhead(receive, limits.settings.body_limit, limits.settings.body_timeout)
    return request.ahead


async def _respond_to_nobody(send: Send) -> None:
    """End the request of a client that has left. Outer middleware may need a response, with the status of nginx."""
    with suppress(OSError):
        await send({"type": "http.response.start", "status": 499, "headers": []})
        await send({"type": "http.response.body", "body": b""})
