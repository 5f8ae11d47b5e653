"""Opens the traffic log of a command, and reads times."""

from datetime import UTC, datetime
from typing import Final

import click

from ...clock import SECOND
from ...errors import ConfigError
from ...limiter.times import seconds_of
from ...quota import parse_duration
from ...testmode import process_clock
from ...traffic import TrafficLog
from ...traffic.address import parse_log_url
from ..clients import own_memory

_SHARED: Final = "Set a log that processes share, such as sqlite:///traffic.db"


def open_log(url: str, create: bool = False) -> TrafficLog:
    """Open the log of a URL, with its own retention. Raises ``Failure`` for one in memory."""
    if parse_log_url(url).family == "memory":
        raise own_memory("the log", _SHARED)
    return TrafficLog.open(url, process_clock, create)


def read_time(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """Return the seconds since 1970 of a time: a duration before now, a date or a time. A callback of click."""
    try:
        return (process_clock() - parse_duration(text)) / SECOND
    except ConfigError:
        pass
    try:
        return seconds_of(text)
    except (ValueError, OverflowError):
        expected = "a duration before now such as 7d, or a time in UTC such as 2026-01-31 or 2026-01-31T12:00"
        raise click.BadParameter(f"expected {expected}; got {text!r}") from None


def minute_text(seconds: float) -> str:
    """Return a time in UTC, to the minute or to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00").removesuffix(":00")
