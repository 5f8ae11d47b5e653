"""Play requests to one example application, in its own process with a manual clock, and print its responses.

`python migrating_player.py examples/migrating/slowapi_before.py app` reads a list of steps as JSON from its standard
input: arguments of ``httpx.request``, and ``after``, the seconds before it. A response is status and body.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx

URL = "http://localhost"
CLIENT = "192.0.2.7"
START = 1_767_268_830.0  # half a minute after a full one: no window ends without a pause


def ask(app: Any, **request: Any) -> httpx.Response:
    """Send one request to an ASGI or WSGI application without a server."""
    if not (inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(type(app).__call__)):
        with httpx.Client(transport=httpx.WSGITransport(app, remote_addr=CLIENT), base_url=URL) as client:
            return client.request(**request)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(CLIENT, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            return await client.request(**request)

    return asyncio.run(send())


def main() -> None:
    file, name = Path(sys.argv[1]), sys.argv[2]
    now = START
    time.time = lambda *_: now  # before the import of a module that reads it, or has it as a method
    from ratelimit_mw import clock

    clock.machine.monotonic_ns = lambda: int(now * 1e9) - clock._WALL_AT_ZERO
    sys.path.insert(0, str(file.parent))
    app = getattr(importlib.import_module(file.stem), name)
    responses = []
    for step in json.load(sys.stdin):
        now += step.pop("after", 0)
        response = ask(app, **step)
        responses.append([response.status_code, response.text])
    print(json.dumps(responses))


if __name__ == "__main__":
    main()
