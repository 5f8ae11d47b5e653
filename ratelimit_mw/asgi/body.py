"""The body of an ASGI request, read ahead of the application, which then receives the same messages."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final, TypeVar

from ..keys.features import INVALID
from .types import Message, Receive

_MAX_MESSAGES: Final = 64
_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")

_LATE: Final[Message] = {"type": ""}

_Result = TypeVar("_Result")


def without_upload(running: Any, receive: Receive) -> Receive:
    """Return a ``receive`` that leaves the time of an upload, which its client chooses, out of that of a request.

    A client may end its upload by a disconnect. A later one ends no upload: the application may wait for it meanwhile.
    """
    is_uploading = True

    async def receive_untimed() -> Message:
        nonlocal is_uploading
        since = running.now()
        message = await receive()
        if is_uploading:
            running.began += running.now() - since
            is_uploading = message.get("more_body", False)
        return message

    return receive_untimed


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

    async def read(self) -> object:
        """Return the body; ``INVALID`` for one that is too long, too late or cut short."""
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

    async def run_connected(self, decision: Awaitable[_Result]) -> _Result | None:
        """Await a decision while the client is connected; None when the client leaves before."""
        scope = asyncio.timeout(None)

        def end_scope(leaving: asyncio.Future[bool]) -> None:
            if not leaving.cancelled() and leaving.exception() is None and leaving.result():
                with suppress(RuntimeError):  # the request was decided at the same time
                    scope.reschedule(0)

        leaving = asyncio.ensure_future(self._has_left())
        leaving.add_done_callback(end_scope)
        try:
            async with scope:
                return await decision
        except TimeoutError:
            if not scope.expired():
                raise
            return None
        finally:
            leaving.cancel()

    async def _has_left(self) -> bool:
        """Wait until the client leaves. Return False when it sends more than can be kept for the application."""
        size = sum(len(message.get("body", b"")) for message in self._kept)
        while size <= self._limit and len(self._kept) < _MAX_MESSAGES:
            message = await self._next()
            if message["type"] in _DISCONNECTS:
                return True
            size += len(message.get("body", b""))
        return False

    async def _next(self, timeout: float | None = None) -> Message:
        """Return the next message and keep it for the application; ``_LATE`` when it does not arrive in time."""
        self._pending = self._pending or asyncio.ensure_future(self._receive())
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
