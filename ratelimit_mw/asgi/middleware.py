"""ASGI middleware. It translates the protocol, and knows nothing of counting, rules or header values.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Unpack

from ..decision import Verdict
from ..errors import ConfigError, RateLimitExceeded
from ..http.admission import Admission
from ..http.headers import with_headers
from ..http.limiter import DECIDED, HttpLimiter
from ..http.rejection import Rejection
from ..limiter.limiter import Limiter
from ..rules.decorators import mark_decided
from ..rules.plan import Plan
from ..settings import HttpOptions, SettingsSource
from .body import BODY, ReadAhead
from .dependencies import DependencyDecisions, decisions_of
from .request import ASGIRequest, asgi_user
from .routes.index import RouteIndex, RouteIndexes
from .routes.tree import ROUTES_UNKNOWN, RouteMatch
from .startup import BrokenMiddleware, is_built_by_starlette, stands_alone
from .websocket import DENIAL_START, WebSocketConnection

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_STARTS = ("http.response.start", DENIAL_START)
_ENDS = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")
_STOPS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)
_ERROR = 500  # the status that servers send when an application raises


class RateLimitMiddleware:
    """Limit the HTTP requests and WebSockets of an ASGI application.

    The application finds the verdict in ``scope["state"]["ratelimit"]``. When the server starts, or at the first
    request, the routes of Starlette and FastAPI are read for the limits that decorators have marked.

    Args:
        app: The application.
        settings: A settings file, a dictionary or ``Settings``. Give either ``settings`` or ``limiter``.
        limiter: A limiter that you have built.
        features: Your functions of the ``ASGIRequest``, sync or async, by feature.
        rejection: Your function of the ``ASGIRequest`` and the verdict. It returns a ``Rejection`` or an ASGI app.
        **options: HTTP settings such as ``trusted_proxies`` and ``headers``, which override those of ``settings``.

    Raises:
        ConfigError: An argument or a rule cannot work. Under Starlette it is raised when the application starts.

    Example:
        app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
    """

    routes: RouteIndexes | BrokenMiddleware

    def __init__(
        self,
        app: ASGIApp,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: Mapping[str, Callable[[Any], Any]] | None = None,
        rejection: Callable[[ASGIRequest, Verdict], Any] | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        try:
            adapter = {"user": asgi_user}
            self.limits = HttpLimiter(settings, limiter, features or {}, rejection, adapter, options, routes=True)
            if stands_alone(app):
                self.limits.adopt(())
        except Exception as error:
            if not is_built_by_starlette():
                raise
            self.routes = BrokenMiddleware(error)
            return
        self.limiter = self.limits.limiter
        self.routes = RouteIndexes(app, self.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._beside_http(scope, receive, send)
            return
        request = ASGIRequest(scope)
        match = self.routes.match(request) if self.routes.has_routes else ROUTES_UNKNOWN
        plan = self.limits.plan(request, match.marks)
        if DECIDED in scope:
            plan = self.limits.undecided(plan, scope)
        if plan.is_empty and not (match.has_dependencies and self._is_first(scope)):
            await self._pass(request, match, scope, receive, send)
        elif self.limits.reader.reads_bodies and BODY not in scope and self._needs_body(plan, request, match):
            http = self.limits.settings
            async with ReadAhead(receive, http.body_limit, http.body_timeout) as ahead:
                request.native = scope = {**scope, BODY: await ahead.read(request)}
                await self._decide(plan, request, match, scope, ahead.receive, send)
        else:
            await self._decide(plan, request, match, scope, receive, send)

    async def _decide(
        self, plan: Plan, request: ASGIRequest, match: RouteMatch, scope: Scope, receive: Receive, send: Send
    ) -> None:
        admission = Admission(self.limits)
        if self.limiter.waits or self.limits.reader.may_await:
            await admission.adecide(plan, request)
        else:
            admission.decide(plan, request)
        scope = self._scope_with(admission, scope)
        if not admission.verdict.allowed:
            await self._reject(admission, request, scope, receive, send)
            return
        app = self.app if request.index is None else self._app_with_limits(admission, request, match, scope)
        try:
            if plan.may_delay and admission.verdict.delay:
                await asyncio.sleep(admission.verdict.delay)
            await app(scope, receive, self._sender(admission, request.index, match, scope, send))
        except BaseException as error:
            if not await self._handle(error, admission, request, scope, receive, send):
                raise
        else:
            if plan.needs_settlement or match.has_dependencies or admission.verdict.true_cost is not None:
                await admission.aend(admission.status or _ERROR)

    def _sender(
        self, admission: Admission, index: RouteIndex | None, match: RouteMatch, scope: Scope, send: Send
    ) -> Send:
        """Return a ``send`` that adds the rate limit headers."""
        names = self.limits.writer.names

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                if index is not None:
                    index.compare(match, scope.get("endpoint"))
                if added := admission.headers(message["status"]):
                    message = with_headers(message, added, names)
            return send(message)

        return send_with_headers

    async def _handle(
        self,
        error: BaseException,
        admission: Admission,
        request: ASGIRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> bool:
        """End the admission after an error. Return whether a rejection was sent for it."""
        if isinstance(error, RateLimitExceeded):
            await admission.aend(admission.status or 429)
            if admission.status is None:
                admission.show(error.verdict)
                await self._reject(admission, request, scope, receive, send)
                return True
        elif isinstance(error, Exception):
            request.explain(error)
            await admission.aend(admission.status or _ERROR)
        elif isinstance(error, _STOPS):
            await admission.aend(None)  # the outcome is not known: only slots are given back
        return False

    def _app_with_limits(self, admission: Admission, request: ASGIRequest, match: RouteMatch, scope: Scope) -> ASGIApp:
        """Prepare the limits that the view and its dependencies check."""
        if match.marks is not None:
            mark_decided(match.marks)
        if not match.has_dependencies:
            return self.app
        decisions = DependencyDecisions(self.limits, admission, request, match.marks)
        decisions.put_into(scope)
        return partial(decisions.run, self.app)

    async def _reject(
        self, admission: Admission, request: ASGIRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        added = admission.headers(admission.verdict.status or 429)
        names = {name for name, _ in added}

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                message = with_headers(message, added, names)
            return send(message)

        response = await self._rejection(admission, request, scope)
        if not isinstance(response, Rejection):
            await response(scope, receive, send_with_headers)
            return
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        await send_with_headers({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else response.body})

    async def _rejection(self, admission: Admission, request: ASGIRequest, scope: Scope) -> Any:
        """Return your own response to a rejection, else that of the application's error handler, else the package's."""
        if self.limits.reject is not None:
            response = self.limits.reject(request, admission.verdict)
            return await response if inspect.isawaitable(response) else response
        handler = None if request.index is None or scope["type"] != "http" else request.index.handler
        return (handler and handler(admission.verdict)) or admission.rejection(request)

    async def _pass(self, request: ASGIRequest, match: RouteMatch, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for a request that no rule applies to."""
        if match.marks is not None:
            mark_decided(match.marks)
        if DECIDED not in scope:
            state = scope.get("state")
            scope = {**scope, "state": {} if state is None else state}
            scope["state"]["ratelimit"] = Verdict()
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            request.explain(error)
            raise

    def _is_first(self, scope: Scope) -> bool:
        """Return whether no middleware with the same rules decides what the request meets on its way."""
        return decisions_of(scope) is None or not self.limits.is_decided(scope)

    def _needs_body(self, plan: Plan, request: ASGIRequest, match: RouteMatch) -> bool:
        """Return whether a rule reads the body, now or on the way to the view."""
        reader, rules = self.limits.reader, self.limits.rules
        if reader.needs_body(plan):
            return True
        host = request.host if rules.needs_host else ""
        return reader.needs_body(rules.plan_of(match.deferred, request.method, host, match.marks))

    def _scope_with(self, admission: Admission, scope: Scope) -> Scope:
        """Return a scope with the verdict, for the application and for other middleware."""
        verdict = admission.verdict
        state = scope.get("state")
        if state is None:
            state = {}
        if verdict.decisions or not verdict.allowed or DECIDED not in scope:
            state["ratelimit"] = verdict  # else the application keeps the verdict of the outer middleware
        # DECIDED is not in the state, because a server may share one state between requests.
        decided_before = scope.get(DECIDED)
        if decided_before is not None:
            return {**scope, "state": state, DECIDED: {**decided_before, self.limiter: verdict}}
        return {**scope, "state": state, DECIDED: {self.limiter: verdict}}

    async def _beside_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, self._lifespan_sender(scope, send))
        else:
            await self.app(scope, receive, send)

    def _lifespan_sender(self, scope: Scope, send: Send) -> Send:
        """Return a ``send`` that reads the routes at the start and closes the limiter at the end."""

        async def send_in_time(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    self.routes.index_of(scope)
                except ConfigError as error:
                    if "app" not in scope:  # Starlette reports the error to the server by itself
                        await send_in_time({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
            if message["type"] in _ENDS and not isinstance(self.routes, BrokenMiddleware):
                await self.limiter.aclose()
            await send(message)

        return send_in_time

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide a handshake as a GET."""
        request = ASGIRequest({**scope, "method": "GET"})
        match = self.routes.match(request)
        plan = self.limits.undecided(self.limits.plan(request, match.marks), scope)
        has_messages = match.marks is not None and bool(match.marks.messages)
        if plan.is_empty and not ((has_messages or match.has_dependencies) and self._is_first(scope)):
            await self._pass(request, match, scope, receive, send)
            return
        admission = Admission(self.limits)
        await admission.adecide(plan, request)
        scope = self._scope_with(admission, scope)
        reject = partial(self._reject, admission, request, scope)
        connection = WebSocketConnection(self.limits, admission, request, match, receive, send, reject)
        if not admission.verdict.allowed:
            await connection.reject()
            return
        if has_messages or match.has_dependencies:
            DependencyDecisions(self.limits, admission, request, match.marks).put_into(scope)
        await connection.serve(partial(self._pass, request, match), scope)
