"""WebSockets: rejected handshakes, and limits on the messages of a connection.

A handshake counts as a GET of its path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import Admission
from ..http.headers import with_headers
from ..http.limiter import HttpLimiter
from ..rules.marks import MessageMark
from .request import ASGIRequest
from .routes.tree import RouteMatch

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DENIAL_START: Final = "websocket.http.response.start"
_DENIAL: Final = "websocket.http.response"
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008
_STATUSES: Final = {"websocket.accept": 101, "websocket.close": 403}


class WebSocketConnection:
    """One WebSocket whose handshake is decided."""

    def __init__(
        self,
        limits: HttpLimiter,
        admission: Admission,
        request: ASGIRequest,
        match: RouteMatch,
        receive: Receive,
        send: Send,
        reject: Callable[[Receive, Send], Awaitable[None]],
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._request = request
        self._match = match
        self._receive = receive
        self._send = send
        self._reject = reject
        self._marks: tuple[MessageMark, ...] = () if match.marks is None else match.marks.messages
        host = request.host if limits.rules.needs_host else ""
        self._plan = limits.rules.plan_of(self._marks, request.method, host, match.marks)
        self._has_received = False
        self._is_closed = False

    async def serve(self, app: Callable[..., Awaitable[None]], scope: MutableMapping[str, Any]) -> None:
        """Run the application for an allowed handshake, and settle it when the connection ends."""
        admission = self._admission
        status: int | None = None
        try:
            if admission.verdict.delay:
                await asyncio.sleep(admission.verdict.delay)
            await app(scope, self._receive_allowed, lambda message: self._send_on(message, scope))
            status = admission.status or 500
        except RateLimitExceeded as rejection:
            status = admission.status or 429
            if admission.status is None:
                admission.show(rejection.verdict)
                await self.reject()
            else:
                await self._close()
        except Exception:
            status = admission.status or 500
            raise
        finally:
            await admission.aend(status)

    async def reject(self) -> None:
        """Reject the handshake: with a whole response where the server can send one, else by closing (403)."""
        if not self._has_received:
            await self._receive()
        if _DENIAL in (self._request.native.get("extensions") or {}):
            await self._reject(self._receive, self._deny)
        else:
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    async def _receive_allowed(self) -> Message:
        """Return the next message that the limits on messages allow."""
        while True:
            if self._is_closed:
                return {"type": "websocket.disconnect", "code": _TRY_AGAIN_LATER}
            message = await self._receive()
            self._has_received = True
            if message["type"] != "websocket.receive" or self._plan.is_empty:
                return message
            verdict = await Admission(self._limits).adecide(self._plan, self._request)
            if verdict.allowed:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay)
                return message
            if self._closes(verdict):
                await self._close()

    def _closes(self, verdict: Verdict) -> bool:
        """Return whether a rejected message closes the connection. A deny list does."""
        dropping = {self._limits.rules.rule_of(mark).name for mark in self._marks if mark.over == "drop"}
        return verdict.denied or not dropping.issuperset(decision.rule for decision in verdict.rejected_by)

    async def _send_on(self, message: Message, scope: MutableMapping[str, Any]) -> None:
        """Pass on a message of the application, unless the connection was closed here."""
        if self._is_closed:
            return
        kind = message["type"]
        if self._admission.status is None and (kind in _STATUSES or kind == DENIAL_START):
            added = self._admission.headers(_STATUSES.get(kind) or message["status"])
            if kind != "websocket.close":
                if self._request.index is not None:
                    self._request.index.compare(self._match, scope.get("endpoint"))
                message = with_headers(message, added, self._limits.writer.names) if added else message
        await self._send(message)

    async def _close(self) -> None:
        self._is_closed = True
        await self._send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "Too many requests"})

    async def _deny(self, message: Message) -> None:
        kind: str = message["type"]
        await self._send(message if kind.startswith("websocket.") else {**message, "type": f"websocket.{kind}"})
