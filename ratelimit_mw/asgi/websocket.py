"""WebSockets: rejected handshakes, and limits on the messages of a connection.

A handshake counts as a GET of its path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.admission import adecide
from ..rules.marks import MessageMark
from .request import ASGIApp, Message, Receive

if TYPE_CHECKING:
    from .middleware import ASGIAdmission

_DENIAL: Final = "websocket.http.response"
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008


class WebSocketConnection:
    """One WebSocket whose handshake is decided."""

    def __init__(self, admission: ASGIAdmission, receive: Receive) -> None:
        self._admission = admission
        self._receive = receive
        self._send = admission.server_send
        request, marks = admission.request, admission.request.match.marks
        self.marks: tuple[MessageMark, ...] = () if marks is None else marks.messages
        """The limits on messages."""
        self._rules = admission.limits.rules
        self._plan = self._rules.plan_of(self.marks, request.method, request.host, marks, admission.lists)
        self._has_received = False
        self._is_closed = False

    async def serve(self, app: ASGIApp) -> None:
        """Run the application for an allowed handshake, and settle it when the connection ends."""
        admission = self._admission
        status: int | None = None
        try:
            if admission.verdict.delay:
                await asyncio.sleep(admission.verdict.delay)
            await app(admission.native, self._receive_allowed, self._send_on)
            status = admission.status or 500
        except RateLimitExceeded as rejection:
            status = admission.status or 429
            if admission.status is None:
                admission.verdict = rejection.verdict
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
        if _DENIAL in (self._admission.native.get("extensions") or {}):
            await self._admission.reject(self._receive, self._deny)
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
            verdict = await adecide(self._admission.limits, self._plan, self._admission.request)
            if verdict.allowed:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay)
                return message
            if self._closes(verdict):
                await self._close()

    def _closes(self, verdict: Verdict) -> bool:
        """Return whether a rejected message closes the connection. A deny list does."""
        dropping = {self._rules.rule_of(mark).name for mark in self.marks if mark.over == "drop"}
        return verdict.denied or not dropping.issuperset(decision.rule for decision in verdict.rejected_by)

    async def _send_on(self, message: Message) -> None:
        """Pass on a message of the application, unless the connection was closed here."""
        if not self._is_closed:
            if message["type"] == "websocket.close" and self._admission.status is None:
                self._admission.status = 403
            await self._admission.send(message)

    async def _close(self) -> None:
        self._is_closed = True
        await self._send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "Too many requests"})

    async def _deny(self, message: Message) -> None:
        kind: str = message["type"]
        await self._send(message if kind.startswith("websocket.") else {**message, "type": f"websocket.{kind}"})
