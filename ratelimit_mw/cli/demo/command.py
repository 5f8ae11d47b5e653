"""``ratelimit-mw demo``: a real server, real traffic at it, and who was served and who rejected.

What it needs beyond click and rich is an extra: looked for when the command runs, and imported only then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ...errors import MissingExtraError
from ..log_file import DamagedLogError
from ..output import Failure, counted, examples, note
from . import log as demo_log
from . import traffic
from .server import SETTINGS, ServerFailedError, server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .player import Outcome, Played

__all__ = ["demo"]

_NEEDED: Final = ("httpx", "starlette", "uvicorn")
_REQUESTS: Final = 3000
_MOST_REQUESTS: Final = 100_000
_INTERRUPTED: Final = 130  # as shells say it


@click.command(
    epilog=examples(
        "ratelimit-mw demo",
        "ratelimit-mw demo --seed 7 --requests 1000",
        "ratelimit-mw demo --log /var/log/nginx/access.log.2.gz",
    )
)
@click.option(
    "--log", "access_log", type=click.File("rb"), help='Play this access log, "-" for stdin, as fast as it goes.'
)
@click.option("--requests", type=click.IntRange(1, _MOST_REQUESTS),
              help=f"How many: {_REQUESTS:,}, or of a log as many as it has, up to {_MOST_REQUESTS:,}.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed, the same traffic.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where the server listens; a free port.")
def demo(access_log: IO[bytes] | None, requests: int | None, seed: int, port: int) -> None:
    """Start a server on this machine, play traffic at it for ten seconds, and show who was served and who rejected.

    The traffic is made up in the shape of a real site's: few clients ask much and many little, in bursts; a crawler;
    people who sign in, and two who guess passwords. Or it is an access log, common or combined format, plain or
    gzip. Nothing leaves this machine, and the server is gone when the command ends.
    """
    if any(find_spec(name) is None for name in _NEEDED):
        raise MissingExtraError("the demo", "demo")
    kinds: Sequence[str]
    if access_log is None:
        kinds, planned = traffic.KINDS, traffic.traffic(seed, requests or _REQUESTS)
    else:
        kinds, planned = demo_log.KINDS, _logged(access_log, requests or _MOST_REQUESTS)
    try:
        _show(planned, kinds, port)
    except KeyboardInterrupt:
        note("stopped, and so is the server")
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except ServerFailedError as error:
        note(f"{error}; it said:")
        for line in error.output.splitlines() or ["(nothing)"]:
            note(f"  {line}")
        raise click.exceptions.Exit(1) from None


def _logged(file: IO[bytes], most: int) -> list[traffic.Request]:
    try:
        requests, reader = demo_log.logged(file, most)
    except DamagedLogError as error:
        raise Failure(f"{file.name}: cannot be read to its end: {error}") from None
    if reader.invalid:
        note(f"{counted(reader.invalid, 'line')} of {reader.lines:,} could not be read")
    if not requests:
        raise Failure(f"{file.name}: there is no request in it")
    if len(requests) == most:
        note(f"playing the first {most:,} requests; --requests changes how many")
    return requests


def _show(planned: list[traffic.Request], kinds: Sequence[str], port: int) -> None:
    from .report import Report

    report = Report(SETTINGS)
    report.before()
    report.after(asyncio.run(_played(planned, port)), kinds)


async def _played(planned: list[traffic.Request], port: int) -> Played:
    from .player import play

    async with server(port) as running:
        note(f"serving at {running.address}")
        with _progress(len(planned)) as told:
            played = await play(running.address, planned, lambda: running.alive, told)
        if not running.alive:
            raise running.failure("ended while it was played at")
        return played


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[Outcome], None]]:
    """A bar on stderr, when that is a terminal."""
    columns = (
        TextColumn("playing"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,}"),
        TextColumn("[red]{task.fields[rejected]:,} rejected"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=requests, rejected=0)
        rejected = 0

        def told(outcome: Outcome) -> None:
            nonlocal rejected
            rejected += outcome.is_rejected
            progress.update(task, advance=1, rejected=rejected)

        yield told
