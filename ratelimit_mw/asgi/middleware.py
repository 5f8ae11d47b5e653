"""ASGI middleware. Translates the protocol and nothing else: no counting, no rules, no headers of its own.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Unpack

from ..decision import Verdict
from ..errors import ConfigError, MissingMiddlewareError, RateLimitExceeded
from ..http.admission import left_of
from ..http.features import awaited
from ..http.headers import with_headers
from ..http.limiter import HttpLimiter, HttpOptions, SettingsSource
from ..http.rejection import Rejection
from ..limiter.limiter import Limiter
from ..rules.marks import decided as note_decided
from ..rules.plan import Plan
from .body import BODY, ReadAhead
from .exchange import Exchange, exchange_of
from .request import ASGIRequest, user_of
from .routes.applications import RouteIndexes
from .routes.index import RouteIndex
from .routes.match import NOWHERE, RouteMatch
from .startup import BrokenMiddleware, is_built_by_starlette, stands_alone
from .websocket import DENIAL_START, Connection

__all__ = ["ASGIRequest", "RateLimitMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_DECIDED = "ratelimit_mw.decided"
"""Where in the scope the verdicts are, by their limiters."""
_NOTHING = Plan([])
_STARTS = ("http.response.start", DENIAL_START)
_ENDS = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")


class RateLimitMiddleware:
    """Decides every HTTP request and WebSocket by the rules; rejects it, or adds the headers to its response.

    In Starlette and FastAPI: ``app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")``. Their routes are
    read when the server starts, or at the first request, for what decorators have marked.

    Give it ``settings`` (a file, a dictionary or ``Settings``) or a ``limiter``. ``features`` are your own
    functions of the request, by feature name, sync or async; ``rejection`` is your own answer: a function of the
    request and the verdict that returns a ``Rejection`` or an ASGI application. ``trusted_proxies``, ``headers``
    and the other HTTP settings may be given here too. The application finds the verdict in
    ``scope["state"]["ratelimit"]``. What cannot work raises ``ConfigError`` here; what only routes can tell, and all
    under Starlette, at the start.
    """

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
        self._applications: RouteIndexes | BrokenMiddleware | None
        try:
            self._guard = guard = HttpLimiter(
                settings, limiter, features or {}, rejection, user_of, options, routes=True
            )
            if stands_alone(app):
                guard.adopt(())
        except Exception as error:
            if not is_built_by_starlette():
                raise
            self._applications = BrokenMiddleware(error)
            return
        self.limiter = guard.limiter
        self._headers = guard.writer.headers
        self._names = guard.writer.names
        self._applications = RouteIndexes(guard, app, self._adopted)
        self._adopted()

    def _adopted(self) -> None:
        """Look again at what changes when there are new rules."""
        self._features = self._guard.reader.of
        self._may_await = self._guard.reader.may_await
        self._reads_bodies = self._guard.reader.reads_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - every call counts here
        if scope["type"] != "http":
            await self._beside_http(scope, receive, send)
            return
        request = ASGIRequest(scope)
        routed = None if self._applications is None else self._routed(request)
        rules = self._guard.rules
        plan = rules.plan(
            scope["method"],
            request.path if scope.get("root_path") else scope["path"] or "/",
            request.host if rules.needs_host else "",
            None if routed is None else routed.view,
        )
        decided, again = scope.get(_DECIDED), False
        if decided is not None and self._guard.has_decided(decided):
            plan, again = self._left(plan, decided), True
        if plan.is_empty and (routed is None or not routed.meets or (again and exchange_of(scope) is not None)):
            if decided is None:
                scope = {**scope, "state": _telling(scope, Verdict())}
            await self._hand_on(request, scope, receive, send)
            return
        if self._reads_bodies and BODY not in scope and self._needs_body(plan, request, routed):
            await self._read_ahead(request, receive, send)
            return
        features = self._features(plan, request)
        if self._may_await:
            await awaited(features)
        if self.limiter.waits:
            verdict = await self.limiter.adecide(plan, features, request=request)
        else:
            verdict = self.limiter.decide(plan, features, None, True, request)
        # The mark stands in the scope: a state may outlive the request, where a server hands all requests the same.
        noted = {self.limiter: verdict} if decided is None else {**decided, self.limiter: verdict}
        scope = {**scope, "state": _telling(scope, verdict), _DECIDED: noted}
        if not verdict.allowed:
            await self._reject(request, scope, verdict, receive, send)
            return
        exchange = None if routed is None else Exchange(self._guard, request, routed, verdict, scope, request.index)
        pass_on = send if exchange is None else exchange.hiding(send)
        status = 0

        def send_with_headers(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if added := self._headers(verdict if exchange is None else exchange.answered()):
                    message = with_headers(message, added, self._names)
            return pass_on(message)

        if plan.has_slots:
            self.limiter.hold(verdict)
        try:
            if plan.may_delay and verdict.delay:
                await asyncio.sleep(verdict.delay)
            await self.app(scope, receive, send_with_headers)
            if exchange is not None and exchange.hides:
                raise RateLimitExceeded(exchange.verdicts[-1])
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            # Nobody knows how it would have ended: what was reserved stays consumed, and only slots come back.
            if plan.has_slots or (routed is not None and routed.meets):
                await asyncio.shield(self._conclude(verdict, exchange, None))
            raise
        except RateLimitExceeded as rejection:
            answered = status if exchange is None or not exchange.hides else 0
            await self._conclude(verdict, exchange, answered or 429)
            if answered:
                raise
            await self._reject(request, scope, rejection.verdict, receive, send)
            return
        except Exception as error:
            request.explain(error)
            await self._conclude(verdict, exchange, status or 500)  # what servers answer when the application has not
            raise
        if plan.needs_settlement or verdict.true_cost is not None or (routed is not None and routed.meets):
            await self._conclude(verdict, exchange, status or 500)

    async def _hand_on(self, request: ASGIRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """To the application as it is: what no rule looks at."""
        try:
            await self.app(scope, receive, send)
        except MissingMiddlewareError as error:
            request.explain(error)
            raise

    def _needs_body(self, plan: Plan, request: ASGIRequest, routed: RouteMatch | None) -> bool:
        """Whether a rule reads the body, now or on the way to the view."""
        plans = [plan] if routed is None else [plan, self._guard.plan_of(routed.later, request, routed.view)]
        return any(map(self._guard.reader.needs_body, plans))

    async def _read_ahead(self, request: ASGIRequest, receive: Receive, send: Send) -> None:
        """Start again with the body in the scope."""
        http = self._guard.http
        async with ReadAhead(receive, http.body_limit, http.body_timeout) as ahead:
            await self({**request.native, BODY: await ahead.read(request)}, ahead.receive, send)

    def _left(self, plan: Plan, decided: Mapping[Limiter, Verdict]) -> Plan:
        """What is left of a plan where a middleware around this one, of the same rules, may not know the routes."""
        mine = [verdict for other, verdict in decided.items() if self._guard.has_decided((other,))]
        left = left_of(plan, tuple(name for verdict in mine for name in verdict.rules))
        return left if left.rules else _NOTHING

    def _conclude(self, verdict: Verdict, exchange: Exchange | None, status: int | None) -> Awaitable[None]:
        return self.limiter.aconclude(verdict, status) if exchange is None else exchange.conclude(status)

    def _index_of(self, scope: Scope) -> RouteIndex | None:
        """The routes of the application; from now on nobody looks for them when there are none."""
        index = None if self._applications is None else self._applications.index_of(scope)
        if index is None:
            self._applications = None
        return index

    def _routed(self, request: ASGIRequest) -> RouteMatch | None:
        """Where the request will go, and a note that the limits marked there are taken care of."""
        index = request.index = self._index_of(request.native)
        if index is None:
            return None
        routed = index.find(request)
        request.endpoint = routed.endpoint
        if routed.view is not None:
            note_decided(routed.view)
        return routed

    async def _beside_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return

        async def send_in_time(message: Message) -> None:
            # Once the application has started, it has its routes.
            if message["type"] == "lifespan.startup.complete":
                try:
                    self._index_of(scope)
                except ConfigError as error:
                    if "app" not in scope:  # else it is Starlette, which tells the server itself
                        await send_in_time({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
            if message["type"] in _ENDS and not isinstance(self._applications, BrokenMiddleware):
                await self.limiter.aclose()
            await send(message)

        await self.app(scope, receive, send_in_time)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide a handshake as the GET that it is."""
        request = ASGIRequest({**scope, "method": "GET"})
        routed = self._routed(request) or NOWHERE
        plan = self._guard.plan(request, routed.view)
        decided = scope.get(_DECIDED, {})
        held = routed.view is not None and routed.view.messages
        if again := self._guard.has_decided(decided):
            plan = self._left(plan, decided)
        meets = (held or routed.meets) and not (again and exchange_of(scope) is not None)
        if plan.is_empty and not meets:
            if not decided:
                scope = {**scope, "state": _telling(scope, Verdict())}
            await self._hand_on(request, scope, receive, send)
            return
        verdict = await self._guard.decide(plan, request, {})
        scope = {**scope, "state": _telling(scope, verdict), _DECIDED: {**decided, self.limiter: verdict}}
        exchange = Exchange(self._guard, request, routed, verdict, scope, request.index)
        answer = partial(self._reject, request, scope)
        connection = Connection(self._guard, request, routed.view, exchange, receive, send, answer)
        if verdict.allowed:
            await connection.serve(partial(self._hand_on, request, scope))
        else:
            await connection.reject(verdict)

    async def _reject(self, request: ASGIRequest, scope: Scope, verdict: Verdict, receive: Receive, send: Send) -> None:
        headers = self._headers(verdict)
        names = {name for name, _ in headers}

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                message = with_headers(message, headers, names)
            return send(message)

        handler = request.index.answer if request.index is not None and scope["type"] == "http" else None
        answer: Any
        if self._guard.reject is not None:
            answer = self._guard.reject(request, verdict)
            answer = await answer if inspect.isawaitable(answer) else answer
        elif handler is None or (answer := handler(verdict)) is None:
            answer = self._guard.rejection(request, verdict, headers)
        if not isinstance(answer, Rejection):
            await answer(scope, receive, send_with_headers)
            return
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send_with_headers({"type": "http.response.start", "status": answer.status, "headers": own})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body})


def _telling(scope: Scope, verdict: Verdict) -> dict[str, Any]:
    """The state of a request, in which the application finds the verdict."""
    state: dict[str, Any] | None = scope.get("state")
    if state is None:
        return {"ratelimit": verdict}
    state["ratelimit"] = verdict
    return state
