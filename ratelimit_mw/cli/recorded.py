"""The parts that ``report``, ``top`` and the admin API share: the time range, and errors without records."""

from collections.abc import Callable
from typing import Any, Final

import click

from ..clock import SECOND
from ..errors import ConfigError
from ..limiter.records import LONGEST
from ..quota import parse_duration
from .output import Failure, parsed
from .source import Source

DEFAULT: Final = "24h"


def parse_last(text: str) -> float:
    """Return the seconds of a time range such as "24h". ``ConfigError`` for one that is not recorded."""
    if not 0 < (seconds := parse_duration(text) / SECOND) <= LONGEST:
        raise ConfigError(f"expected a time of at most 7 days, such as 1h or 7d; got {text}")
    return seconds


last_option: Callable[..., Any] = click.option(
    "--last", default=DEFAULT, show_default=True, metavar="DURATION", callback=parsed(parse_last),
    help="The time range, up to 7d.",
)  # fmt: skip


def check_recorded(source: Source, what: str) -> None:
    """Raise ``Failure`` unless the processes of the source record this where a command can read it."""
    if source.running_settings.record not in (what, "clients"):
        name = source.settings.source or "the application"
        raise Failure(f'{name} does not record {what}. Set record = "{what}", and restart your application')
