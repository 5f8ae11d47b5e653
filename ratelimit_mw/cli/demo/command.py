"""``ratelimit-mw demo``: a real server, real traffic, and a table of the allowed and rejected requests."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click
from rich.progress import TextColumn, TimeElapsedColumn

from ...errors import MissingExtraError
from ..access_log import LogReader
from ..json_lines import LineParser
from ..output import Cell, command, count_text, note, print_table, print_text, progress, terminal
from .traffic import LOG_KINDS, TRAFFIC_KINDS, DemoRequest, make_traffic, read_requests

if TYPE_CHECKING:
    import httpx

    from .player import KindCount, Playback

_FILES: Final = {"settings": Path(__file__).with_name("demo.toml"), "application": Path(__file__).with_name("app.py")}
_REQUESTS: Final = 3000
_MAX_REQUESTS: Final = 100_000
_INTERRUPTED: Final = 130  # the exit code of shells for Ctrl-C


@command(
    "ratelimit-mw demo",
    "ratelimit-mw demo --seed 7 --requests 1000",
    "ratelimit-mw demo --log /var/log/nginx/access.log.2.gz",
    "zcat access.log.*.gz | ratelimit-mw demo --log -",
)
@click.option("--log", "access_log", type=click.File("rb"),
              help='Send the requests of this access log. "-" reads stdin.')  # fmt: skip
@click.option("--requests", type=click.IntRange(1, _MAX_REQUESTS),
              help=f"Number of requests. Default: {_REQUESTS:,}, or with --log up to {_MAX_REQUESTS:,}.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the generated traffic.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the server. Default: a free port.")
def demo(access_log: IO[bytes] | None, requests: int | None, seed: int, port: int) -> None:
    """Start a server, send ten seconds of traffic to it, and show which clients were rejected.

    The generated traffic has the shape of a real site: many clients with few requests, few clients with many, a
    crawler, people who log in, and two attacks on passwords. With --log the demo sends the requests of an access log
    as fast as possible: common or combined format, or JSON lines, plain or gzip.

    The server runs on this machine only, and stops when the command ends.
    """
    if not all(map(find_spec, ("httpx", "starlette", "uvicorn"))):
        raise MissingExtraError("the demo", "demo")
    from .player import play
    from .server import serve

    planned = _read_log(access_log, requests) if access_log else make_traffic(seed, requests or _REQUESTS)
    _show_files()
    counts = "{task.completed:,} of {task.total:,} requests [red]{task.fields[rejected]:,} rejected"
    try:
        with serve(port) as url, asyncio.Runner() as runner:
            runner.get_loop()  # now, because an event loop that Ctrl-C interrupts as it is made shows a traceback
            note(f"serving at {url}")
            with progress("sending", len(planned), TextColumn(counts), TimeElapsedColumn(), rejected=0) as update:
                playback = runner.run(play(url, planned, lambda now: update(advance=1, rejected=now.rejections)))
    except KeyboardInterrupt:
        note("interrupted; the server is stopped")
        raise click.exceptions.Exit(_INTERRUPTED) from None
    _show_playback(playback)


def _read_log(file: IO[bytes], number: int | None) -> list[DemoRequest]:
    most = number or _MAX_REQUESTS
    reader = LogReader(file, parse=LineParser())
    requests = read_requests(reader, most)
    reader.finish(bool(requests))
    if len(requests) == most:
        note(f"sending the first {count_text(most, 'request')}; change the number with --requests")
    return requests


def _show_files() -> None:
    """Print the settings and the application as they are in their files."""
    from rich.syntax import Syntax

    for title, path in _FILES.items():
        print_text(f"The {title}: {_short_path(path)}", "bold")
        code = Syntax("", path.suffix.replace("py", "python")[1:], theme="ansi_dark", background_color="default")
        terminal().print(code.highlight(path.read_text("utf-8").strip()))
        click.echo()


def _show_playback(playback: Playback) -> None:
    counts = [(kind, playback.kinds[kind]) for kind in TRAFFIC_KINDS + LOG_KINDS if kind in playback.kinds]
    requests = sum(count.requests for _, count in counts)
    clients = count_text(sum(len(count.clients) for _, count in counts), "client")
    print_text(f"{count_text(requests, 'request')} from {clients} in {playback.seconds:.1f} s", "bold")
    print_text(f"{requests - playback.rejections:,} allowed, {playback.rejections:,} rejected")
    if playback.failures:
        print_text(f"{count_text(playback.failures, 'request')} without a response", "bold red")
    click.echo()
    print_table("By kind of client", [_row(kind, count) for kind, count in counts])
    if playback.sample is not None:
        _show_sample(*playback.sample, playback.retry_response)
    _show_next_commands()


def _row(kind: str, count: KindCount) -> dict[str, Cell]:
    return {
        "kind of client": kind,
        "clients": len(count.clients),
        "requests": count.requests,
        "allowed": count.requests - count.rejections,
        "rejected": count.rejections,
        "rejected by": ", ".join(sorted(count.policies)),
    }


def _show_sample(request: DemoRequest, response: httpx.Response, retry_response: httpx.Response | None) -> None:
    print_text("A rejection, as it was sent", "bold")
    print_text(f"{request.method} {request.target} from {request.client}")
    headers = (f"{name.decode()}: {value.decode()}" for name, value in response.headers.raw)
    for line in ("", f"{response.http_version} {_status(response)}", *headers, "", response.text, ""):
        print_text(line, "cyan")
    if retry_response is not None:
        status = _status(retry_response)
        print_text(f"The same request after Retry-After ({response.headers['retry-after']} s): {status}", "green")
        click.echo()


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}"


def _show_next_commands() -> None:
    settings = shlex.quote(_short_path(_FILES["settings"]))
    # The program as you can type it, even when its virtual environment is not active.
    program = "ratelimit-mw"
    if not shutil.which(program):
        program = shlex.quote(_short_path(Path(sys.executable).with_name(program)))
    print_text("Try next", "bold")
    explain, log = "POST /login --feature ip=192.0.2.7", "/var/log/nginx/access.log"
    for arguments in (
        f"check {settings}",
        f"explain {settings} {explain}",
        f"replay {settings} {log}",
        f"demo --log {log}",
    ):
        print_text(f"  {program} {arguments}")
    print_text("Applications for ASGI, WSGI, Starlette, FastAPI, Flask and Django are in examples/ of the source.")


def _short_path(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
