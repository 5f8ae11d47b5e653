"""Ends the admission of a Django response: at once, or when its stream ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, nullcontext
from typing import Any

from .admission import DjangoAdmission


def ends_later(response: Any, admission: DjangoAdmission) -> bool:
    """Return whether slots are held while the response streams. A cost may be stated until the stream ends.

    Under ASGI Django does not close a response whose stream fails or whose start cannot be sent. So the stream and,
    on an event loop, the response object are watched too.
    """
    if not response.streaming or not admission.verdicts:
        return False
    status = response.status_code
    # Not streaming_content: it refers to the response, which would then be collected late.
    if response.is_async:
        response.streaming_content = _awatch_stream(response._iterator, admission, status)
    elif getattr(response, "file_to_stream", None) is None:  # servers send and close files by themselves
        response.streaming_content = _watch_stream(response._iterator, admission, status)
    response._resource_closers.append(lambda: admission.end(status))
    if admission.has_slots:
        _watch_response(response, admission, status)
    return admission.has_slots


def _watch_stream(content: Iterator[Any], admission: DjangoAdmission, status: int) -> Iterator[Any]:
    try:
        yield from content
    finally:
        admission.end(status)


async def _awatch_stream(content: Any, admission: DjangoAdmission, status: int) -> AsyncIterator[Any]:
    try:
        async with aclosing(content) if hasattr(content, "aclose") else nullcontext():
            async for part in content:
                yield part
    finally:
        await admission.aend(status)


def _watch_response(response: Any, admission: DjangoAdmission, status: int) -> None:
    """End the admission when the response is collected, on the loop: a finalizer cannot wait for a lock."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # WSGI servers close every response
        return

    def end() -> None:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(admission.aend(status), loop)

    finalizer = weakref.finalize(response, end)
    finalizer.atexit = False
    response._resource_closers.append(finalizer.detach)
