"""The WebSocket half of the ASGI middleware: handshakes are rejected, and messages too many.

A handshake counts as a GET of its path. A connection that was let in may be held to a number of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitExceeded
from ..http.headers import with_headers
from ..http.limiter import HttpLimiter
from ..http.request import Request
from ..rules.marks import MessageMark, ViewMarks
from .exchange import Exchange

__all__ = ["DENIAL_START", "Connection"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = Callable[[Verdict, Receive, Send], Awaitable[None]]

DENIAL_START: Final = "websocket.http.response.start"
_DENIAL: Final = "websocket.http.response"
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008
_SWITCHING_PROTOCOLS: Final = 101
_FORBIDDEN: Final = 403


class Connection:
    """One WebSocket, once its handshake is decided. ``answer`` is given a rejection, to send a whole response."""

    def __init__(
        self,
        guard: HttpLimiter,
        request: Request,
        view: ViewMarks | None,
        exchange: Exchange,
        receive: Receive,
        send: Send,
        answer: Answer,
    ) -> None:
        self._guard = guard
        self._request = request
        self._receive = receive
        self._send = send
        self._exchange = exchange
        self._answer = answer
        self._marks: tuple[MessageMark, ...] = () if view is None else view.messages
        self._plan = guard.plan_of(self._marks, request, view)
        self._heard = False
        self._closed = False
        self._status: int | None = None  # until the application has answered the handshake

    async def serve(self, app: Callable[[Receive, Send], Awaitable[None]]) -> None:
        """A handshake that is allowed: hand it on, and settle what the connection's end decides."""
        verdict = self._exchange.verdicts[0]
        self._guard.limiter.hold(verdict)
        status: int | None = None
        try:
            if verdict.delay:
                await asyncio.sleep(verdict.delay)
            await app(self._receive_allowed, self._send_on)
            status = self._status or 500
        except RateLimitExceeded as rejection:
            status = self._status or 429
            await (self.reject(rejection.verdict) if self._status is None else self._close())
        except Exception:
            status = self._status or 500
            raise
        finally:
            await asyncio.shield(self._exchange.conclude(status))

    async def reject(self, verdict: Verdict) -> None:
        """Turn the handshake down: with a whole response where the server can send one, else it says 403."""
        if not self._heard:
            await self._receive()
        if _DENIAL in (self._request.native.get("extensions") or {}):
            await self._answer(verdict, self._receive, self._deny)
        else:
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    async def _receive_allowed(self) -> Message:
        """The next message that is not one too many."""
        while True:
            if self._closed:
                return {"type": "websocket.disconnect", "code": _TRY_AGAIN_LATER}
            message = await self._receive()
            self._heard = True
            if message["type"] != "websocket.receive" or self._plan.is_empty:
                return message
            verdict = await self._guard.decide(self._plan, self._request, {})
            if verdict.allowed:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay)
                return message
            if self._closes(verdict):
                await self._close()

    def _closes(self, verdict: Verdict) -> bool:
        """Whether a message too many ends the connection. Being put on a deny list does."""
        dropping = {self._guard.rules.of(mark).name for mark in self._marks if mark.over == "drop"}
        return verdict.denied or not dropping.issuperset(decision.rule for decision in verdict.rejected_by)

    async def _send_on(self, message: Message) -> None:
        """Hand on what the application sends, until the connection is closed over its head."""
        if self._closed:
            return
        kind = message["type"]
        if self._status is None and kind in ("websocket.accept", "websocket.close", DENIAL_START):
            self._status = {"websocket.accept": _SWITCHING_PROTOCOLS, "websocket.close": _FORBIDDEN}.get(kind)
            self._status = self._status or message["status"]
            if kind != "websocket.close":
                message = self._with_headers(message)
        await self._send(message)

    def _with_headers(self, message: Message) -> Message:
        """The message that answers the handshake, with the rate limit headers."""
        writer = self._guard.writer
        added = writer.headers(self._exchange.answered())
        return with_headers(message, added, writer.names) if added else message

    async def _close(self) -> None:
        """End a connection that was let in: try again later."""
        self._closed = True
        await self._send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "Too many requests"})

    async def _deny(self, message: Message) -> None:
        kind: str = message["type"]
        await self._send(message if kind.startswith("websocket.") else {**message, "type": f"websocket.{kind}"})
