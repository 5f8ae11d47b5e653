"""Real servers whose handler serves 4 requests at a time for 50 ms, with an adaptive limit and without one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ratelimit_mw import asgi, wsgi

AT_ONCE: Final = 4
SERVICE: Final = 0.05
CAPACITY: Final = AT_ONCE / SERVICE
ARRIVALS: Final = 3 * CAPACITY
PATIENCE: Final = 1.0
SECONDS: Final = 60
SETTINGS: Any = {
    "rules": [{"name": "api", "key": [], "limits": "adaptive 6..100 concurrent", "target": "250ms"}],
}
SERVERS: Final = {
    "uvicorn": ("uvicorn", "{app}_asgi", "--port", "{port}", "--log-level", "error"),
    "gunicorn, 64 threads": ("gunicorn", "{app}_wsgi", "-k", "gthread", "--threads", "64", "-b", "127.0.0.1:{port}"),
}
_ROOT: Final = Path(__file__).parents[2]
_asgi_turns: dict[str, asyncio.Semaphore] = {}
_wsgi_turns: Final = threading.Semaphore(AT_ONCE)


async def bare_asgi(scope: Any, _receive: Any, send: Any) -> None:
    """Serve a request in its turn."""
    if scope["type"] == "http":
        async with _asgi_turns.setdefault("all", asyncio.Semaphore(AT_ONCE)):
            await asyncio.sleep(SERVICE)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def bare_wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    """Serve a request in its turn."""
    with _wsgi_turns:
        time.sleep(SERVICE)
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]


limited_asgi = asgi.RateLimitMiddleware(bare_asgi, settings=SETTINGS)
limited_wsgi = wsgi.RateLimitMiddleware(bare_wsgi, settings=SETTINGS)


@contextmanager
def running(server: str, app: str) -> Iterator[int]:
    """Run a server with an application, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    module, *arguments = SERVERS[server]
    words = [word.format(app=f"benchmarks.load.served:{app}", port=port) for word in arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words], cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


async def _request(port: int) -> int:
    """Return the status of a response, 0 for none within the patience of the client."""
    writer = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    except (OSError, TimeoutError):
        return 0
    finally:
        if writer is not None:
            writer.close()


async def load(port: int, seconds: float = SECONDS, rate: float = ARRIVALS) -> dict[int, int]:
    """Send requests at a fixed rate, whatever the responses are. Return how many had each status."""
    loop = asyncio.get_running_loop()
    start, tasks = loop.time(), []
    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
        tasks.append(asyncio.create_task(_request(port)))
    statuses = await asyncio.gather(*tasks)
    return {status: statuses.count(status) for status in sorted({*statuses})}


async def capacity(port: int, seconds: float, clients: int = 2 * AT_ONCE) -> float:
    """Return the requests per second of clients that wait for each response: what the machine can do now."""
    end, served = time.monotonic() + seconds, 0

    async def repeat() -> None:
        nonlocal served
        while time.monotonic() < end:
            if await _request(port) == 200:  # before the sum is read: other clients add to it
                served += 1

    await asyncio.gather(*(repeat() for _ in range(clients)))
    return served / seconds


def goodput(server: str, app: str, seconds: float = SECONDS) -> float:
    """Return the requests per second that were served in time."""
    with running(server, app) as port:
        return asyncio.run(load(port, seconds)).get(200, 0) / seconds


def table(seconds: float = SECONDS) -> str:
    """Return the goodput of each server as a table."""
    titles = ("Server", "capacity per second", "served in time, without a limit", "with the adaptive limit")
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---:|---:|"]
    for server in SERVERS:
        with running(server, "bare") as port:
            most = asyncio.run(capacity(port, seconds / 4))
        bare, limited = (goodput(server, app, seconds) for app in ("bare", "limited"))
        lines.append(f"| {server} | {most:.0f} | {bare:.0f} | {limited:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
