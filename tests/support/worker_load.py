"""A real server with two workers, and four clients that send requests to them all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from http_servers import served_port

PACE = 4 / 500
"""The seconds between two requests of one of four clients that send 500 requests in a second together."""
SERVERS = {
    "uvicorn": "uvicorn --workers 2 --no-access-log app:app",
    "gunicorn": "gunicorn --workers 2 --threads 4 app:app",
}

STARLETTE = """
import os
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.starlette import RateLimitMiddleware, check, limit

async def home(request):
    return PlainTextResponse(str(os.getpid()))

async def checked(request):
    await check(request, "named")
    return PlainTextResponse(str(os.getpid()))

view = limit("700/hour", name="view", key="header:x-user|ip")(home)
app = Starlette(routes=[Route("/", home), Route("/checked", checked), Route("/view", view)])
app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""
FLASK = """
import os
from flask import Flask
from ratelimit_mw.flask import RateLimiter, check, limit

app = Flask("app")
RateLimiter(app, settings="ratelimit.toml")

@app.get("/")
def home():
    return str(os.getpid())

@app.get("/checked")
def checked():
    check("named")
    return str(os.getpid())

app.add_url_rule("/view", "view", limit("700/hour", name="view", key="header:x-user|ip")(lambda: str(os.getpid())))
"""
PROGRAMS = {"uvicorn": STARLETTE, "gunicorn": FLASK}
"""By their server: one view, one that decides the rule ``named``, and one with the limit ``view``."""


@contextmanager
def two_workers(server: str, folder: Path) -> Iterator[int]:
    """Run the program of a server in a folder, and yield the port."""
    (folder / "app.py").write_text(PROGRAMS[server])
    with served_port(folder / "output", SERVERS[server], folder) as port:
        yield port


class LoadClients:
    """Four clients, which ``send`` requests until the block ends."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        try:
            while not self.is_over.is_set():
                self.send(number)
        except BaseException as error:
            self.errors.append(error)

    def send(self, number: int) -> None:
        """Send some requests as one of the clients."""
        raise NotImplementedError
