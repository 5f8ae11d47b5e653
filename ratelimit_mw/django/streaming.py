"""When a response of Django's is over: at once, or once it has been streamed, however that ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, nullcontext
from typing import Any

from .admission import Current

__all__ = ["ends_later"]


def ends_later(response: Any, current: Current) -> bool:
    """Whether slots stay taken while the response streams. A cost may be stated until it is closed in any case.

    Under ASGI Django does not close every response: none whose stream fails, and none whose beginning cannot be sent.
    So the stream is watched, too, and so is the response, where a loop is there to act on that.
    """
    if not response.streaming or not current.pending:
        return False
    status = response.status_code
    # Not its streaming_content, which holds the response: that would then be forgotten late.
    if response.is_async:
        response.streaming_content = _awatched(response._iterator, current, status)
    elif getattr(response, "file_to_stream", None) is None:  # servers send files by themselves, and close them
        response.streaming_content = _watched(response._iterator, current, status)
    response._resource_closers.append(lambda: current.over(status))
    if current.holds:
        _watch(response, current, status)
    return current.holds


def _watched(content: Iterator[Any], current: Current, status: int) -> Iterator[Any]:
    try:
        yield from content
    finally:
        current.over(status)


async def _awatched(content: Any, current: Current, status: int) -> AsyncIterator[Any]:
    try:
        async with aclosing(content) if hasattr(content, "aclose") else nullcontext():
            async for part in content:
                yield part
    finally:
        await current.aover(status)


def _watch(response: Any, current: Current, status: int) -> None:
    """Settle once the response is forgotten: on the loop, as no lock can be waited for while memory is cleaned up."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # servers of WSGI close all that they are given
        return

    def forgotten() -> None:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(current.aover(status), loop)

    watch = weakref.finalize(response, forgotten)
    watch.atexit = False
    response._resource_closers.append(watch.detach)
