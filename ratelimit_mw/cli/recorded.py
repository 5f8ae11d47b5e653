"""The parts that ``report``, ``top`` and the admin API share: the traffic log and the time range."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import click

from ..clock import SECOND
from ..errors import ConfigError
from ..quota import parse_duration
from ..settings import Settings
from ..traffic import TrafficLog
from .output import parsed
from .source import Source
from .traffic.source import open_log

DEFAULT: Final = "24h"


def parse_last(text: str) -> float:
    """Return the seconds of a time range such as "24h". ``ConfigError`` for an empty one."""
    if not (seconds := parse_duration(text) / SECOND):
        raise ConfigError(f"expected a time such as 1h or 7d; got {text}")
    return seconds


last_option: Callable[..., Any] = click.option(
    "--last", default=DEFAULT, show_default=True, metavar="DURATION", callback=parsed(parse_last),
    help="The time range up to now.",
)  # fmt: skip


def check_recorded(settings: Settings, needs_clients: bool = False) -> str:
    """Return the URL of the traffic log. ``ConfigError`` if there is none, or if it has no clients but needs them."""
    name = settings.source or "the application"
    if settings.traffic_log is None:
        missing = 'has no traffic log. Add traffic_log = "sqlite:///traffic.db"'
    elif needs_clients and not settings.traffic_clients:
        missing = "does not record clients. Add traffic_clients = true"
    else:
        return settings.traffic_log
    raise ConfigError(f"{name} {missing}, and restart your application")


@contextmanager
def open_recorded(source: Source, needs_clients: bool = False) -> Iterator[TrafficLog]:
    """Open the traffic log of the processes of a source."""
    with closing(open_log(check_recorded(source.running_settings, needs_clients))) as log:
        yield log
