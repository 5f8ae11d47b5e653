"""``ratelimit-mw traffic expire``: drop what a traffic log no longer keeps."""

from contextlib import closing

import click

from ..clients import open_log
from ..output import Answer, command, json_flag


@command(
    "ratelimit-mw traffic expire sqlite:///traffic.db",
    "ratelimit-mw traffic expire sqlite:///traffic.db --json",
    name="expire",
)
@click.argument("url")
@json_flag
def expire(url: str) -> Answer:
    """Drop the expired counts of the traffic log at URL, and free their disk space.

    Your application drops expired counts, too, but its SQLite file does not shrink. The command rewrites the file, and
    needs as much free disk space as the size of the file. Meanwhile, your application keeps its counts in memory. Redis
    drops expired counts on its own.
    """
    with closing(open_log(url)) as log:
        freed = log.expire()
    return Answer({"bytes": freed}, [f"{log.name}: {freed:,} bytes of disk space freed"])
