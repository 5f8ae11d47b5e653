"""Real servers with two workers, whose settings file changes 100 times while clients send requests."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Self

import pytest
from http_servers import served_port
from servers import PATIENCE, wait_for

pytestmark = pytest.mark.thorough

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

async def checked(request):
    await check(request, "named")
    return PlainTextResponse(str(os.getpid()))

@limit("700/hour", name="view")
async def view(request):
    return PlainTextResponse(str(os.getpid()))

app = Starlette(routes=[Route("/checked", checked), Route("/view", view)])
app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""
FLASK = """
import os
from flask import Flask
from ratelimit_mw.flask import RateLimiter, check, limit

app = Flask("app")
RateLimiter(app, settings="ratelimit.toml")

@app.get("/checked")
def checked():
    check("named")
    return str(os.getpid())

app.add_url_rule("/view", "view", limit("700/hour", name="view")(lambda: str(os.getpid())))
"""
PROGRAMS = {"uvicorn": STARLETTE, "gunicorn": FLASK}
"""By their server: a view that decides the rule ``named``, and one with the limit ``view``."""
TIGHT = 5
CHANGES = 100


def toml(version: int, folder: Path) -> str:
    """Return settings whose rules all have the version in their amounts, but for a limit that stays the same."""
    return f"""
store = "lmdb://{folder}/state"
store_timeout = "9s"
headers = ["ratelimit"]
reload_interval = "50ms"

[[rules]]
name = "first"
match = {{ path = "/checked" }}
limits = "{version}/hour"

[[rules]]
name = "second"
match = {{ path = "/checked" }}
key = ["endpoint", "ip"]
limits = "{version}/hour"

[[rules]]
overrides = "view"
limits = "{TIGHT}/hour"

[[rules]]
name = "named"
match = {{ view = "" }}
limits = "{version}/hour"
"""


class ChangingFile:
    """A settings file, and ways to change it. ``tests/limiter/test_reload.py`` has files behind links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._target = folder / "ratelimit.toml"
        self.ways = [self.replace, self.write_in_halves, self.write_mistakes]

    def replace(self, version: int) -> bool:
        later = self._target.with_name("later")
        later.write_text(toml(version, self._folder))
        later.replace(self._target)
        return True

    def write_in_halves(self, version: int) -> bool:
        """Write rules without the last one, or with a part of it, and then the rest."""
        text = toml(version, self._folder)
        half = text.rindex("[[rules]]") + (0, 12)[version // 3 % 2]
        with self._target.open("w") as file:
            file.write(text[:half])
            file.flush()
            time.sleep(0.2)
            file.write(text[half:])
        return True

    def write_mistakes(self, version: int) -> bool:
        """Write limits that would allow everything, in a file with a mistake."""
        mistakes = ("", "wrong = 1\n", "\n[[rules]]\nname = 'first'\nlimits = '1/s'\n", "\n[[rules]]\nlimits =")
        text = toml(10**9, self._folder).replace(f"{TIGHT}/hour", f"{10**9}/hour")
        mistake = mistakes[version // 3 % len(mistakes)]
        self._target.write_text(mistake and (mistake + text if mistake.startswith("wrong") else text + mistake))
        time.sleep(0.2)
        return False


@contextmanager
def two_workers(server: str, folder: Path) -> Iterator[int]:
    """Run the program of a server in a folder, and yield the port."""
    (folder / "app.py").write_text(PROGRAMS[server])
    with served_port(folder / "output", SERVERS[server], folder) as port:
        yield port


class Clients:
    """Four clients, which send requests until the block ends. They keep what is wrong with the responses."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        self.wrong: list[str] = []
        self.by_worker: dict[str, int] = {}
        self.allowed = 0
        self.sent = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                self._send()
        except BaseException as error:
            self.errors.append(error)

    def _send(self) -> None:
        connection, due = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE), time.monotonic()
        for path in ["/checked"] * 9 + ["/view"]:
            self._ask(connection, path)
            due = max(due + PACE, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        connection.close()

    def _ask(self, connection: HTTPConnection, path: str) -> None:
        connection.request("GET", path)
        response = connection.getresponse()
        body, policy = response.read().decode(), response.headers.get("RateLimit-Policy", "")
        self.sent += 1
        amounts = re.findall(r'"(\w+)";q=(\d+)', policy)
        if path == "/view":
            self.allowed += response.status == 200
            if response.status not in (200, 429) or amounts != [("view", str(TIGHT))]:
                self.wrong.append(f"{response.status} {policy}")
            return
        versions = {amount for _, amount in amounts}
        names = [name for name, _ in amounts]
        if response.status != 200 or names != ["first", "second", "named"] or len(versions) != 1:
            self.wrong.append(f"{response.status} {policy} {body[:80]}")
        else:
            self.by_worker[body] = int(versions.pop())

    def have_seen(self, version: int, by: Callable[[list[bool]], bool]) -> bool:
        return bool(self.wrong or self.errors) or by([seen == version for seen in self.by_worker.values()])


@pytest.mark.parametrize("server", PROGRAMS)
def test_no_request_fails_or_meets_half_of_the_rules(server: str, tmp_path: Path) -> None:
    """The file is replaced, written in halves or with mistakes. Each worker follows."""
    file, first = ChangingFile(tmp_path), 10_000_000
    file.replace(first)
    ways = itertools.cycle(file.ways)
    with two_workers(server, tmp_path) as port, Clients(port) as clients:
        wait_for(lambda: clients.wrong or clients.errors or len(clients.by_worker) == 2, "two workers")
        version = first
        for number, change in zip(range(first + 1, first + 1 + CHANGES), ways, strict=False):
            if change(number):
                version = number
                wait_for(partial(clients.have_seen, version, any), f"{change.__name__} {version}")
        file.replace(version + CHANGES)
        wait_for(lambda: clients.have_seen(version + CHANGES, all), "all workers")
    assert (clients.wrong, clients.errors) == ([], [])
    assert len(clients.by_worker) == 2
    assert clients.allowed <= TIGHT
    assert clients.sent > CHANGES
