"""Start and stop an ASGI application as a server does."""

import asyncio
import contextlib
from typing import Any

from ratelimit_mw import ConfigError


async def run_lifespan(app: Any, sent: list[str], between: Any = None, state: dict[str, Any] | None = None) -> str:
    """Start and stop an application as a server does. Return the message of a failed start."""
    steps = asyncio.Queue[Any]()
    answered = asyncio.Event()
    failures = [""]

    async def send(message: Any) -> None:
        sent.append(message["type"])
        failures[0] = message.get("message", "")
        answered.set()

    steps.put_nowait({"type": "lifespan.startup"})
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {} if state is None else state}
    running = asyncio.create_task(app(scope, steps.get, send))
    waiting = asyncio.create_task(answered.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if sent[-1:] == ["lifespan.startup.complete"]:
        if between is not None:
            await between()
        steps.put_nowait({"type": "lifespan.shutdown"})
    with contextlib.suppress(ConfigError):
        await running
    return failures[0]
