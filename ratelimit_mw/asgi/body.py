"""The body of an ASGI request, read ahead of the application, which then receives the same messages."""

import asyncio
from collections import deque
from typing import Final

from ..http.request import Request
from ..keys.features import INVALID
from .types import Message, Receive

_MAX_MESSAGES: Final = 64
_LATE: Final[Message] = {"type": ""}


class ReadAhead:
    """Reads the body once, and then gives the application the same messages by ``receive``. Close it at the end.

    A message that is late is still awaited and passed on. It is never cancelled while the application may ask for it.
    """

    def __init__(self, receive: Receive, limit: int, timeout_us: int) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout = timeout_us / 1_000_000
        self._kept: deque[Message] = deque()
        self._pending: asyncio.Future[Message] | None = None

    def close(self) -> None:
        """Stop waiting for a message that was late."""
        if self._pending is not None:
            self._pending.cancel()
            # asyncio logs an error that is not retrieved.
            self._pending.add_done_callback(lambda pending: pending.cancelled() or pending.exception())

    async def read(self, request: Request) -> object:
        """Return the body; None without one, ``INVALID`` for one that is too long, too late or cut short."""
        if not _may_have_content(request):
            return None
        if _announced(request) > self._limit:
            return INVALID
        loop, content = asyncio.get_running_loop(), bytearray()
        deadline = loop.time() + self._timeout
        while (message := await self._next(deadline - loop.time()))["type"] == "http.request":
            part = message.get("body", b"")
            if len(content) + len(part) > self._limit:
                break
            content += part
            if not message.get("more_body", False):
                return bytes(content)
            if len(self._kept) >= _MAX_MESSAGES:  # messages of one byte would take a hundred times the memory
                self._kept = deque([{"type": "http.request", "body": bytes(content), "more_body": True}])
        return INVALID

    async def _next(self, timeout: float) -> Message:
        """Return the next message and keep it for the application; ``_LATE`` when it does not arrive in time."""
        self._pending = asyncio.ensure_future(self._receive())
        await asyncio.wait([self._pending], timeout=timeout)
        if not self._pending.done():
            return _LATE
        message, self._pending = self._pending.result(), None
        self._kept.append(message)
        return message

    async def receive(self) -> Message:
        """Return the messages that were read ahead, then the rest."""
        if self._kept:
            return self._kept.popleft()
        pending, self._pending = self._pending, None
        if pending is None:
            return await self._receive()
        try:
            await asyncio.wait([pending])
        except asyncio.CancelledError:
            self._pending = pending  # the application may ask again
            raise
        return pending.result()


def _may_have_content(request: Request) -> bool:
    """Return False for a GET or HEAD over HTTP/1 whose headers announce no content: the common case."""
    if request.method not in ("GET", "HEAD") or not request.native.get("http_version", "1.1").startswith("1"):
        return True
    lengths = request.header_lines("content-length")
    return bool(request.header_lines("transfer-encoding")) or any(length.strip() != "0" for length in lengths)


def _announced(request: Request) -> int:
    """Return the content length that the client has sent; 0 for none, and for one that is not a number."""
    lengths = request.header_lines("content-length")
    length = lengths[0] if len(lengths) == 1 else ""
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
