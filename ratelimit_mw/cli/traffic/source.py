"""The times that a command takes."""

import click

from ...clock import SECOND
from ...errors import ConfigError
from ...operations.times import seconds_of
from ...quota import parse_duration
from ...testmode import process_clock


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
