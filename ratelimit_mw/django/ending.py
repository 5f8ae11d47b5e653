"""When a response of Django's is over: at once, or once it has been streamed, however that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from .current import Current

__all__ = ["ends_later"]


def ends_later(response: Any, current: Current) -> bool:
    """Whether slots stay taken while the response streams. A cost may be stated until it is closed in any case.

    Under ASGI Django closes no response whose stream fails, so the stream itself is watched, too.
    """
    if not response.streaming or not current.pending:
        return False
    status = response.status_code
    _at_close(response, lambda: current.over(status))
    if response.is_async:
        response.streaming_content = _awatched(response.streaming_content, current, status)
    elif getattr(response, "file_to_stream", None) is None:  # servers send files by themselves, and close them
        response.streaming_content = _watched(response.streaming_content, current, status)
    return current.holds


def _at_close(response: Any, then: Callable[[], object]) -> None:
    """Have something done when the server closes a response, after all else that is done then."""
    close = response.close

    def closing() -> None:
        try:
            close()
        finally:
            then()

    response.close = closing


def _watched(content: Iterator[bytes], current: Current, status: int) -> Iterator[bytes]:
    try:
        yield from content
    finally:
        current.over(status)


async def _awatched(content: Any, current: Current, status: int) -> AsyncIterator[bytes]:
    try:
        async with aclosing(content):
            async for part in content:
                yield part
    finally:
        await asyncio.shield(current.aover(status))
