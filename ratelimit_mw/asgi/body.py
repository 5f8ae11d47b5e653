"""The body of an ASGI request, read ahead of the application, which receives the same messages all the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Final

from ..http.request import Request
from ..keys.features import INVALID

__all__ = ["BODY", "ReadAhead", "body_of"]

BODY: Final = "ratelimit_mw.body"
"""Where in the scope the body is, once it was read."""

_MOST_MESSAGES: Final = 64

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class ReadAhead:
    """``async with``: reads the body once; ``receive`` is then what the application is given.

    A message that has not come in time is waited for on: it is handed on when it comes, and is never cancelled while
    the application may ask for it.
    """

    def __init__(self, receive: Receive, limit: int, timeout_us: int) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout = timeout_us / 1_000_000
        self._kept: deque[Message] = deque()
        self._coming: asyncio.Future[Message] | None = None

    async def __aenter__(self) -> ReadAhead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._coming is not None:
            self._coming.cancel()
            self._coming.add_done_callback(_forgotten)

    async def read(self, request: Request) -> object:
        """The body; None when there is none, ``INVALID`` for one that is too long, too late or cut short."""
        if not _may_have_content(request):
            return None
        if _announced(request) > self._limit:
            return INVALID
        deadline = asyncio.get_running_loop().time() + self._timeout
        whole = bytearray()
        while True:
            message = await self._next(deadline)
            if message is None or message["type"] != "http.request":
                return INVALID
            part = message.get("body", b"")
            if len(whole) + len(part) > self._limit:
                return INVALID
            whole += part
            if not message.get("more_body", False):
                return bytes(whole)
            if len(self._kept) >= _MOST_MESSAGES:  # a body in single bytes would take a hundred times its size
                self._kept = deque([{"type": "http.request", "body": bytes(whole), "more_body": True}])

    async def _next(self, deadline: float) -> Message | None:
        """The next message, kept for the application as well; None when it has not come by then."""
        self._coming = coming = asyncio.ensure_future(self._receive())
        await asyncio.wait([coming], timeout=deadline - asyncio.get_running_loop().time())
        if not coming.done():
            return None
        self._coming = None
        message = coming.result()
        self._kept.append(message)
        return message

    async def receive(self) -> Message:
        """What was read ahead, then what comes."""
        if self._kept:
            return self._kept.popleft()
        coming, self._coming = self._coming, None
        if coming is None:
            return await self._receive()
        try:
            await asyncio.wait([coming])
        except asyncio.CancelledError:
            self._coming = coming  # the application stopped waiting; it may ask again
            raise
        return coming.result()


def body_of(scope: MutableMapping[str, Any]) -> object:
    """The body that was read ahead."""
    if scope["type"] != "http":
        return None
    try:
        return scope[BODY]
    except KeyError:
        raise RuntimeError("a rule needs a field of the body, and nobody has read the body ahead") from None


def _may_have_content(request: Request) -> bool:
    """A GET or HEAD without content is common, and is known by its headers before HTTP/2; all else shows soon."""
    if request.method not in ("GET", "HEAD") or not request.native.get("http_version", "1.1").startswith("1"):
        return True
    lengths = request.header_lines("content-length")
    return bool(request.header_lines("transfer-encoding")) or any(length.strip() != "0" for length in lengths)


def _announced(request: Request) -> int:
    """The length that the client has announced; 0 for none, and for one that is no number."""
    lengths = request.header_lines("content-length")
    length = lengths[0] if len(lengths) == 1 else ""
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _forgotten(coming: asyncio.Future[Message]) -> None:
    """Nobody will ask for it: an error of it is nobody's, and is not to be logged."""
    if not coming.cancelled():
        coming.exception()
