"""Decides a request while its client is connected: one that waits for a slot ends when the client leaves."""

import asyncio
from contextlib import suppress
from typing import Final

from ..decision import Verdict
from ..http.limits import HttpLimits
from ..rules.plan import Plan
from .body import ReadAhead
from .request import ASGIRequest, Receive, Send

_CLIENT_LEFT: Final = 499  # as in the logs of nginx


async def respond_to_nobody(send: Send) -> None:
    """End the request of a client that has left. Outer middleware may need a response; servers send none."""
    with suppress(OSError):
        await send({"type": "http.response.start", "status": _CLIENT_LEFT, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def adecide_connected(
    limits: HttpLimits, plan: Plan, request: ASGIRequest, receive: Receive
) -> tuple[Verdict | None, Receive]:
    """Return the verdict, None when the client left before, and the ``receive`` for the application."""
    if not plan.waits:
        return await limits.adecide(plan, request), receive
    if request.ahead is None:
        request.ahead = ReadAhead(receive, limits.settings.body_limit, limits.settings.body_timeout)
    scope = asyncio.timeout(None)

    def end_scope(leaving: asyncio.Future[bool]) -> None:
        if not leaving.cancelled() and leaving.exception() is None and leaving.result():
            with suppress(RuntimeError):  # the request was decided at the same time
                scope.reschedule(0)

    leaving = asyncio.ensure_future(request.ahead.has_left())
    leaving.add_done_callback(end_scope)
    try:
        async with scope:
            return await limits.adecide(plan, request), request.ahead.receive
    except TimeoutError:
        if not scope.expired():
            raise
        return None, request.ahead.receive
    finally:
        leaving.cancel()
