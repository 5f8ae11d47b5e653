"""Play requests to example applications, each in its own process with a manual clock, and print the responses.

The standard input has a dictionary as JSON: by the path of an application, the name of its variable and a list of
steps. A step has the arguments of ``httpx.request``, and ``after``, the seconds before it. A response is status and
body. The processes are forks of one that has imported the libraries.
"""

import asyncio
import importlib
import inspect
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

URL = "http://localhost"
CLIENT = "192.0.2.7"
START = 1_767_268_830.0  # half a minute after a full one: no window ends without a pause
LIBRARIES = ("httpx", "flask_limiter", "slowapi", "django_ratelimit", "rest_framework", "django.http", "pyrate_limiter")

now = START


def ask(app: Any, **request: Any) -> Any:
    """Send one request to an ASGI or WSGI application without a server."""
    import httpx

    if not (inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(type(app).__call__)):
        with httpx.Client(transport=httpx.WSGITransport(app, remote_addr=CLIENT), base_url=URL) as client:
            return client.request(**request)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(CLIENT, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            return await client.request(**request)

    return asyncio.run(send())


def play(path: str, name: str, steps: list[dict[str, Any]]) -> list[tuple[int, str]]:
    global now
    sys.path.insert(0, str(Path(path).parent))
    app = getattr(importlib.import_module(Path(path).stem), name)
    responses = []
    for step in steps:
        now += step.pop("after", 0)
        response = ask(app, **step)
        responses.append((response.status_code, response.text))
    return responses


def main() -> None:
    time.time = lambda *_: now  # before the import of a module that reads it, or has it as a method
    for name in LIBRARIES:
        importlib.import_module(name)
    from pyrate_limiter import MonotonicClock

    from ratelimit_mw import clock

    MonotonicClock.now = lambda _: int(now * 1000)
    clock.machine.monotonic_ns = lambda: int(now * 1e9) - clock.WALL_AT_ZERO
    clock.machine.time_ns = lambda: int(now * 1e9)
    asked = json.load(sys.stdin)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        responses = pool.starmap(play, [(path, *scene) for path, scene in asked.items()], chunksize=1)
    print(json.dumps(dict(zip(asked, responses, strict=True))))


if __name__ == "__main__":
    main()
