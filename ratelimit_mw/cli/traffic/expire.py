"""``ratelimit-mw traffic expire``: drop what a traffic log no longer keeps."""

import click

from ..output import command, json_option, print_json
from .source import open_log


@command(
    "ratelimit-mw traffic expire sqlite:///traffic.db",
    "ratelimit-mw traffic expire sqlite:///traffic.db --json",
    name="expire",
)
@click.argument("url")
@json_option
def expire(url: str, as_json: bool) -> None:
    """Drop what the traffic log at URL no longer keeps, and free its disk space.

    Your application drops it, too, but a file of SQLite does not become smaller. The command writes the file anew. It
    needs as much free disk space as the file has, and your application writes its counts after it. Redis drops expired
    counts on its own.
    """
    log = open_log(url)
    freed = log.expire()
    log.close()
    if as_json:
        print_json({"bytes": freed})
    else:
        click.echo(f"{log.name}: {freed:,} bytes of disk space freed")
