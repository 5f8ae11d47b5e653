"""WebSockets: rejected handshakes, and limits on the messages of a connection.

A handshake counts as a GET of its path.
"""

import asyncio
from typing import Final

from ..decision import Verdict, rejection_of
from .request import ASGIAdmission
from .types import Message, Receive, Send

_DENIAL: Final = "websocket.http.response"
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008


class WebSocketAdmission(ASGIAdmission):
    """An admission of one WebSocket, from its handshake to its end."""

    _has_received = False
    _is_closed = False

    def open(self, receive: Receive) -> Receive:
        """Return the ``receive`` for the application, which gives the messages that the limits allow."""
        self._receive = receive
        request, marks = self.request, self.request.to.marks
        decided = self.first.marks if self.first else ()
        # Those that no outer middleware of this limiter decides.
        self._message_marks = [mark for mark in (marks.messages if marks else ()) if mark not in decided]
        rules = self.limits.rules
        self._plan = rules.plan_for_marks(self._message_marks, request.method, request.host, marks, self.lists)
        return self._receive_allowed

    async def handle(self, error: BaseException, receive: Receive) -> bool:
        """End the admission after an error. A rejection closes a connection that is open."""
        if self.status is None or rejection_of(error) is None:
            return await super().handle(error, receive)
        try:
            await self._close()
        finally:
            await self.aend(self.status)
        return True

    async def reject(self, receive: Receive, send: Send | None = None) -> None:
        """Reject the handshake: with a whole response where the server can send one, else by closing (403)."""
        if not self._has_received:
            await self._receive()
        if self._can_deny:
            await super().reject(self._receive, self._deny)
        else:
            await self.server_send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        self.status = self.verdict.status

    async def send(self, message: Message) -> None:
        """Pass on a message of the application, unless the connection was closed here.

        An error handler responds to a rejection as to one of an HTTP request. Not every connection can carry it.
        """
        if not self._is_closed and self._is_rejection(message):
            if self.is_open:
                await self._close()
            elif not self._can_deny:
                self._is_closed = True
                await self.reject(self._receive)
        if not self._is_closed:
            if message["type"] == "websocket.close" and self.status is None:
                self.status = 403
            self.is_open |= message["type"] == "websocket.accept"
            await super().send(message)

    async def _receive_allowed(self) -> Message:
        """Return the next message that the limits on messages allow."""
        while True:
            if self._is_closed:
                return {"type": "websocket.disconnect", "code": _TRY_AGAIN_LATER}
            message = await self._receive()
            self._has_received = True
            if message["type"] != "websocket.receive" or self._plan.is_empty:
                return message
            verdict = await self._decide_message(message)
            if verdict.allowed:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay)
                return message
            await self._end_message(verdict)

    async def _decide_message(self, message: Message) -> Verdict:
        """Decide a message, which has its own event. A cost function receives its text or its bytes."""
        limits, text = self.limits, message.get("text")
        features = await limits.aread(self._plan, self.request)
        content = message.get("bytes") if text is None else text
        verdict = await limits.limiter.adecide(self._plan, features, None, True, content)
        self.report_now(verdict)
        return verdict

    async def _end_message(self, verdict: Verdict) -> None:
        """Close the connection for a rejected message, unless all limits that reject it only drop it."""
        dropping = {self.limits.rules.rule_of(mark).name for mark in self._message_marks if mark.over == "drop"}
        rejecting = {decision.rule for decision in verdict.rejected_by}  # none for a list, or a ban from all
        if not rejecting or rejecting - dropping:
            await self._close()

    @property
    def _can_deny(self) -> bool:
        """Whether the server can send a whole response to a handshake."""
        return _DENIAL in (self.native.get("extensions") or {})

    def _is_rejection(self, message: Message) -> bool:
        """Return whether an error handler responds to a rejection."""
        is_rejected = not self.verdict or message.get("status") == 429
        return is_rejected and message["type"].startswith(_DENIAL)

    async def _close(self) -> None:
        self._is_closed = True
        await self.server_send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "Too many requests"})

    async def _deny(self, message: Message) -> None:
        kind: str = message["type"]
        await self.send(message if kind.startswith("websocket.") else {**message, "type": f"websocket.{kind}"})
