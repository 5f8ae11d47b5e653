"""Clients that send a body over ASGI, and an application that reads it."""

import asyncio
import json
from typing import Any

from asgi_checker import App, Message, Receive, Scope, Send
from calls import BODY, START, http_scope, send_bare

from ratelimit_mw import Limiter
from ratelimit_mw.asgi.middleware import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

JSON = (b"content-type", b"application/json")
ANN, BOB = (json.dumps({"user": name}).encode() for name in ("ann", "bob"))
LIMIT = 65_536


def settings(key: Any = ("json:user",), limits: str = "1/minute", **more: Any) -> dict[str, Any]:
    return {"rules": [{"name": "api", "key": list(key), "limits": limits}], **more}


def with_middleware(app: App, **more: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limiter=Limiter.from_settings(settings(**more), clock=ManualClock(1_000_000.0)))


def post(*headers: tuple[bytes, bytes], **changed: Any) -> Scope:
    return http_scope(method="POST", headers=[JSON, *headers], **changed)


def chunks(*parts: bytes, more: bool = False) -> list[Message]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": more or i < last} for i, part in enumerate(parts)]


DISCONNECT: Message = {"type": "http.disconnect"}


class Reader:
    """An application that records messages until the end of the body, and ``beyond`` messages more."""

    def __init__(self, beyond: int = 0) -> None:
        self.received: list[Message] = []
        self.beyond = beyond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            self.received.append(await receive())
            if not self.received[-1].get("more_body"):
                break
        for _ in range(self.beyond):
            self.received.append(await receive())
        await send(START)
        await send(BODY)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.received)


class Client:
    """The server side of a connection. ``None`` pauses the messages until ``go_on`` is called."""

    def __init__(self, *messages: Message | Exception | None) -> None:
        self._messages = list(messages)
        self._gate = asyncio.Event()
        self.receive_calls = 0
        self.cancelled = 0
        self.sent: list[Message] = []

    def go_on(self) -> None:
        self._gate.set()

    async def receive(self) -> Message:
        self.receive_calls += 1
        if self._messages[0] is None:
            try:
                await self._gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self._messages[0] is None:
                self._messages.pop(0)
        message = self._messages.pop(0)
        if isinstance(message, Exception):
            raise message
        assert message is not None
        return message

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def statuses(app: App, *requests: tuple[Scope, list[Message]]) -> list[int]:
    return [send_bare(app, scope, incoming)[0]["status"] for scope, incoming in requests]


def remaining(rate: Limiter, user: Any) -> int:
    """Return the remaining requests of a user."""
    return rate.peek({"json:user": user}, cost=0).decisions[0].remaining
