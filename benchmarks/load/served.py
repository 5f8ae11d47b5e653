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


class Clients:
    """Clients that keep their connections, as proxies do: opening them would take most of the time of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self) -> int:
        """Return the status of a response, 0 for none within the patience of the client."""
        writer = None
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    is_new = not self._idle
                    reader, writer = (
                        await asyncio.open_connection("127.0.0.1", self._port) if is_new else self._idle.pop()
                    )
                    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    try:
                        head = await reader.readuntil(b"\r\n\r\n")
                        break
                    except (OSError, asyncio.IncompleteReadError):
                        writer.close()
                        if is_new:
                            raise  # the server has closed an idle connection otherwise
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
            self._idle.append((reader, writer))
            return int(head.split()[1])
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            if writer is not None:
                writer.close()
            return 0


async def load(port: int, seconds: float = SECONDS, rate: float = ARRIVALS) -> dict[int, int]:
    """Send requests at a fixed rate, without regard to the responses. Return how many had each status."""
    loop, clients = asyncio.get_running_loop(), Clients(port)
    start, tasks = loop.time(), []
    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
        tasks.append(asyncio.create_task(clients.ask()))
    statuses = await asyncio.gather(*tasks)
    return {status: statuses.count(status) for status in sorted({*statuses})}


async def capacity(port: int, seconds: float, number: int = 2 * AT_ONCE) -> float:
    """Return the requests per second of clients that wait for each response: the capacity of the machine now."""
    end, served, clients = time.monotonic() + seconds, 0, Clients(port)

    async def repeat() -> None:
        nonlocal served
        while time.monotonic() < end:
            if await clients.ask() == 200:  # before the sum is read: other clients add to it
                served += 1

    await asyncio.gather(*(repeat() for _ in range(number)))
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
