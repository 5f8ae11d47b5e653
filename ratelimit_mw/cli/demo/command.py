"""``ratelimit-mw demo``. Its libraries are an extra, so they are imported only when the command runs."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Final

import click
from rich.progress import TextColumn, TimeElapsedColumn

from ...errors import MissingExtraError
from ..log_file import DamagedLogError
from ..output import Failure, count_text, help_examples, note, progress_bar
from .log import LOG_KINDS, read_requests
from .server import start_server
from .traffic import TRAFFIC_KINDS, DemoRequest, make_traffic

if TYPE_CHECKING:
    from .player import Playback

_LIBRARIES: Final = ("httpx", "starlette", "uvicorn")
_REQUESTS: Final = 3000
_MAX_REQUESTS: Final = 100_000
_INTERRUPTED: Final = 130  # the exit code of shells for Ctrl-C


@click.command(
    epilog=help_examples(
        "ratelimit-mw demo",
        "ratelimit-mw demo --seed 7 --requests 1000",
        "ratelimit-mw demo --log /var/log/nginx/access.log.2.gz",
        "zcat access.log.*.gz | ratelimit-mw demo --log -",
    )
)
@click.option(
    "--log", "access_log", type=click.File("rb"), help='Send the requests of this access log. "-" reads stdin.'
)
@click.option("--requests", type=click.IntRange(1, _MAX_REQUESTS),
              help=f"Number of requests. Default: {_REQUESTS:,}, or with --log up to {_MAX_REQUESTS:,}.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the generated traffic.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the server. Default: a free port.")
def demo(access_log: IO[bytes] | None, requests: int | None, seed: int, port: int) -> None:
    """Start a server, send ten seconds of traffic to it, and show which clients were rejected.

    The generated traffic has the shape of a real site: many clients with few requests, few clients with many, a
    crawler, people who log in, and two attacks on passwords. With --log the demo sends the requests of an access log
    as fast as possible: common or combined format, plain or gzip.

    The server runs on this machine only, and stops when the command ends.
    """
    if any(find_spec(name) is None for name in _LIBRARIES):
        raise MissingExtraError("the demo", "demo")
    from .report import show_files, show_playback

    if access_log is None:
        planned = make_traffic(seed, requests or _REQUESTS)
    else:
        planned = _read_log(access_log, requests or _MAX_REQUESTS)
    try:
        show_files()
        show_playback(_play(planned, port), TRAFFIC_KINDS if access_log is None else LOG_KINDS)
    except KeyboardInterrupt:
        note("interrupted; the server is stopped")
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _read_log(file: IO[bytes], most: int) -> list[DemoRequest]:
    try:
        requests, reader = read_requests(file, most)
    except DamagedLogError as error:
        raise Failure(f"{file.name}: cannot read the compressed file to its end: {error}") from None
    if reader.invalid:
        note(f"skipped {reader.invalid:,} of {count_text(reader.lines, 'line')} that cannot be parsed")
    if not requests:
        raise Failure(f"{file.name}: contains no request")
    if len(requests) == most:
        note(f"sending the first {count_text(most, 'request')}; change the number with --requests")
    return requests


def _play(planned: list[DemoRequest], port: int) -> Playback:
    from .player import play

    columns = (
        TextColumn("{task.completed:,} of {task.total:,} requests"),
        TextColumn("[red]{task.fields[rejected]:,} rejected"),
        TimeElapsedColumn(),
    )
    with start_server(port) as server:
        note(f"serving at {server.url}")
        with progress_bar("sending", len(planned), *columns, rejected=0) as update:
            progress = lambda playback: update(advance=1, rejected=playback.rejected)  # noqa: E731
            playback = asyncio.run(play(server.url, planned, server.is_running, progress))
        if not server.is_running():
            raise server.failure("ended early")
    return playback
