"""``ratelimit-mw demo``: a real server, three kinds of clients, and a table of the allowed and rejected requests."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

import click
from rich.progress import MofNCompleteColumn

from ...errors import MissingExtraError
from ...operations import Cell, Table
from ..output import command, note, print_table, print_text, progress

_FILES: Final = {"settings": "demo.toml", "application": "app.py"}
_CORRECT, _WRONG = {"password": "correct-horse"}, {"password": "123456"}
_TRY_NEXT: Final = """Try next
  ratelimit-mw init
  ratelimit-mw check ratelimit.toml
  ratelimit-mw explain ratelimit.toml GET /items/7 --feature ip=192.0.2.7
  ratelimit-mw replay ratelimit.toml /var/log/nginx/access.log"""


class _Kind(NamedTuple):
    """Clients that do the same: their IP addresses, and the requests that each sends, with a pause between them."""

    name: str
    ips: list[str]
    requests: list[tuple[str, str, dict[str, str] | None]]
    pause: float

    @property
    def size(self) -> int:
        return len(self.ips) * len(self.requests)


_KINDS: Final = (
    _Kind(
        "readers who log in",
        [f"198.18.0.{i}" for i in range(1, 31)],
        [("POST", "/login", _CORRECT), *(("GET", f"/articles/{i}", None) for i in range(9))],
        0.4,
    ),
    _Kind("a crawler", ["192.0.2.10"], [("GET", f"/articles/{i}", None) for i in range(200)], 0.02),
    _Kind("an attack on passwords", ["203.0.113.66"], [("POST", "/login", _WRONG)] * 100, 0.04),
)


@command("ratelimit-mw demo")
def demo() -> None:
    """Start a server, send requests, and show which are rejected.

    The clients of the 600 requests are readers who log in, a crawler, and an attack on passwords. The counts are in the
    memory of the server. It runs on this machine only, on a free port, and stops when the command ends.
    """
    if not all(map(find_spec, ("httpx", "starlette", "uvicorn"))):
        raise MissingExtraError("the demo", "demo")
    for title, name in _FILES.items():
        print_text(f"The {title}: {name}", "bold")
        click.echo(f"{Path(__file__).with_name(name).read_text('utf-8').strip()}\n")
    total = sum(kind.size for kind in _KINDS)
    with _serve() as url, asyncio.Runner() as runner:
        runner.get_loop()  # now, because an event loop that Ctrl-C interrupts as it is made shows a traceback
        note(f"serving at {url}")
        with progress("sending", total, MofNCompleteColumn()) as update:
            rejected = runner.run(_send_all(url, update))
    print_text(f"{total - rejected.total():,} allowed, {rejected.total():,} rejected")
    click.echo()
    rows: list[dict[str, Cell]] = [
        {
            "kind of client": kind.name,
            "clients": len(kind.ips),
            "requests": kind.size,
            "allowed": kind.size - rejected[kind.name],
            "rejected": rejected[kind.name],
        }
        for kind in _KINDS
    ]
    print_table(Table("By kind of client", rows))
    click.echo(_TRY_NEXT)


@contextmanager
def _serve() -> Iterator[str]:
    """Serve the application in a thread, on a free port of 127.0.0.1. Yield the URL."""
    import uvicorn

    from .app import app

    listening = socket.create_server(("127.0.0.1", 0))
    # Without proxy_headers=False uvicorn would replace the IP address before the middleware reads it.
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", proxy_headers=False, timeout_graceful_shutdown=2))
    thread = Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


async def _send_all(url: str, update: Callable[..., Any]) -> Counter[str]:
    """Send the requests of all clients, each client at its own pace, and return the rejections by kind."""
    import httpx

    rejected = Counter[str]()
    # Without trust_env=False the requests could go to a proxy that the environment names.
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:

        async def run(kind: _Kind, ip: str) -> None:
            for method, path, json in kind.requests:
                response = await client.request(method, path, json=json, headers={"X-Forwarded-For": ip})
                rejected[kind.name] += response.status_code == 429
                update(advance=1)
                await asyncio.sleep(kind.pause)

        await asyncio.gather(*(run(kind, ip) for kind in _KINDS for ip in kind.ips))
    return rejected
