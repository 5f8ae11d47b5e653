"""WebSockets: rejected handshakes, and limits on the messages of a connection.

A handshake counts as a GET of its path.
"""

import asyncio
from typing import Final

from ..decision import Verdict, rejection_of
from .request import ERROR, ASGIAdmission
from .types import ASGIApp, Message, Receive

_DENIAL: Final = "websocket.http.response"
_TOO_MANY: Final = 429
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008


class WebSocketConnection:
    """One WebSocket whose handshake is decided."""

    def __init__(self, admission: ASGIAdmission, receive: Receive) -> None:
        self._admission = admission
        self._receive = receive
        self._send = admission.server_send
        request, marks = admission.request, admission.request.match.marks
        decided = admission.first.marks if admission.first else ()
        self.marks = tuple(mark for mark in (marks.messages if marks else ()) if mark not in decided)
        """The limits on messages that no outer middleware of this limiter decides."""
        self._rules = admission.limits.rules
        self._plan = self._rules.plan_of(self.marks, request.method, request.host, marks, admission.lists)
        self._has_received = False
        self._is_closed = False

    async def serve(self, app: ASGIApp) -> None:
        """Reject the handshake, or run the application for it and settle it when the connection ends."""
        admission = self._admission
        status: int | None = None
        try:
            if not admission.verdict.allowed:
                await self.reject()
                return
            if admission.verdict.delay:
                await asyncio.sleep(admission.verdict.delay)
            await app(admission.native, self._receive_allowed, self._send_on)
            status = admission.status or ERROR
        except Exception as error:
            rejection, status = rejection_of(error), admission.status or ERROR
            if rejection is None:
                raise
            if admission.status is None:
                admission.verdict = rejection.verdict
                await self.reject()
                status = rejection.verdict.status
            else:
                await self._close()
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
            verdict = await self._decide(message)
            if verdict.allowed:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay)
                return message
            await self._end_message(verdict)

    async def _decide(self, message: Message) -> Verdict:
        """Decide a message, which has its own event. A cost function receives its text or its bytes."""
        limits, text = self._admission.limits, message.get("text")
        features = await limits.aread(self._plan, self._admission.request)
        content = (message.get("bytes") or b"") if text is None else text
        verdict = await limits.limiter.adecide(self._plan, features, None, True, content)
        self._admission.report_now(verdict)
        return verdict

    async def _end_message(self, verdict: Verdict) -> None:
        """Close the connection for a rejected message, unless all limits that reject it only drop it."""
        dropping = {self._rules.rule_of(mark).name for mark in self.marks if mark.over == "drop"}
        rejecting = {decision.rule for decision in verdict.rejected_by}  # none for a client that is banned everywhere
        if verdict.denied or not rejecting or rejecting - dropping:
            await self._close()

    async def _send_on(self, message: Message) -> None:
        """Pass on a message of the application, unless the connection was closed here."""
        if self._admission.is_open and not self._is_closed and self._is_rejection(message):
            await self._close()
        if not self._is_closed:
            if message["type"] == "websocket.close" and self._admission.status is None:
                self._admission.status = 403
            self._admission.is_open |= message["type"] == "websocket.accept"
            await self._admission.send(message)

    def _is_rejection(self, message: Message) -> bool:
        """Return whether an error handler responds to a rejection, as it does to one of an HTTP request."""
        is_rejected = not self._admission.verdict or message.get("status") == _TOO_MANY
        return is_rejected and message["type"].startswith(_DENIAL)

    async def _close(self) -> None:
        self._is_closed = True
        await self._send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "Too many requests"})

    async def _deny(self, message: Message) -> None:
        kind: str = message["type"]
        await self._send(message if kind.startswith("websocket.") else {**message, "type": f"websocket.{kind}"})
