"""The parts that ``report`` and ``top`` share: the time range, and the errors of an application without records."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click

from ..clock import SECOND
from ..errors import ConfigError
from ..limiter.history import LONGEST
from ..quota import parse_duration
from ..stores import redacted_url
from .output import Failure
from .source import Source

_OWN_MEMORY: Final = (
    "the store memory:// is in each process of your application, so a command cannot read it. Count with the metrics"
    " for Prometheus or OpenTelemetry, use the admin API of `ratelimit-mw serve`, or set a store that processes share,"
    " such as redis://localhost:6379/0 or lmdb:///var/lib/app/ratelimit"
)


def _parse_last(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration(text) / SECOND
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    if not 0 < seconds <= LONGEST:
        raise click.BadParameter(f"expected at most 7 days, such as 1h or 7d; got {text}")
    return seconds


last_option: Callable[..., Any] = click.option(
    "--last", default="24h", show_default=True, metavar="TIME", callback=_parse_last, help="The time range, up to 7d."
)


def check_recorded(source: Source, what: str) -> None:
    """Raise ``Failure`` unless the processes of the source record this where a command can read it."""
    settings = source.limits.limiter.settings if source.limits else source.settings
    if settings.record not in (what, "clients"):
        name = source.settings.source or "the application"
        raise Failure(f'{name} does not record {what}. Set record = "{what}", and restart your application')
    if redacted_url(settings.store).startswith(("memory:", "MemoryStore")):
        raise Failure(_OWN_MEMORY)


def time_text(seconds: float) -> str:
    """Return a time since 1970 in UTC: "2026-11-23T02:00:00Z"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
