"""``ratelimit-mw traffic``: show the events of a traffic log, or the curve of one, and import access logs."""

from contextlib import closing
from typing import Final

import click

from ..clock import SECOND
from ..errors import ConfigError, suggestion
from ..operations import Answer, Cell, Table
from ..operations.answer import minute_text, period_text, seconds_of
from ..quota import parse_duration
from ..testmode import wall_clock
from ..traffic import TrafficLog
from ..traffic.store import parse_log_url
from .access_log import LogEntry
from .log_formats import LineParser
from .logs import RequestLog, format_option, format_text, logs_argument
from .operate import open_log
from .output import command, count_text, json_flag

_WIDTH: Final = 50
"""The longest bar of a curve in the terminal, in characters."""
_POINTS: Final = 50
_POINTS_OF_JSON: Final = 300
_AT_ONCE: Final = 10_000
"""The requests of one write: fewer than the counts that may wait."""


class TrafficGroup(click.Group):
    """The commands of a traffic log. Without a name, the command is ``show``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else ["show", *args])


@click.group(cls=TrafficGroup)
def traffic() -> None:
    """Show the counts of a traffic log, or import access logs.

    `traffic URL [EVENT]` is short for `traffic show URL [EVENT]`.
    """


def _read_time(text: str) -> float:
    """Return the seconds since 1970 of a time: a duration before now, a date or a time."""
    try:
        return (wall_clock() - parse_duration(text)) / SECOND
    except ConfigError:
        pass
    try:
        return seconds_of(text)
    except (ValueError, OverflowError):
        expected = "a duration before now such as 7d, or a time in UTC such as 2026-01-31 or 2026-01-31T12:00"
        raise click.BadParameter(f"expected {expected}; got {text!r}") from None


@command(
    "ratelimit-mw traffic sqlite:///traffic.db",
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 7d --plot",
    "ratelimit-mw traffic sqlite:///traffic.db order --from 2026-01-01 --json",
    name="show",
)
@click.argument("url")
@click.argument("event", required=False)
@click.option("--from", "start", metavar="TIME", default="24h", show_default=True, type=_read_time,
              help="The start of the range: a duration before now, a date or a time.")  # fmt: skip
@click.option("--to", "end", metavar="TIME", default="0s", show_default="now", type=_read_time,
              help="The end of the range, such as 2026-01-31T12:00.")  # fmt: skip
@click.option("--plot", is_flag=True, help="Draw the curve in the terminal.")
@json_flag
def show(url: str, event: str | None, start: float, end: float, plot: bool) -> Answer:
    """Show the counts of EVENT in the log at URL, or the totals of all events.

    URL is the setting `traffic_log` of your application, such as sqlite:///traffic.db. Times are in UTC. The first and
    the last count are whole: they start and end at multiples of their length.
    """
    if plot and event is None:
        raise click.UsageError("--plot draws the curve of an event. Name an EVENT")
    with closing(open_log(url)) as log:
        return _events(log, start, end) if event is None else _curve(log, event, start, end, plot)


def _events(log: TrafficLog, start: float, end: float) -> Answer:
    events = log.events(start, end)
    rows: list[dict[str, Cell]] = [{"event": event, "total": total} for event, total in events.items()]
    notes = [] if events else ["no event is recorded in this time"]
    table = Table(f"{log.name}: events from {period_text(start, end)}", rows)
    return Answer({"from": start, "to": end, "events": events}, [table], notes)


def _curve(log: TrafficLog, event: str, start: float, end: float, has_bars: bool) -> Answer:
    curve, fine = log.curve(event, start, end, _POINTS), log.curve(event, start, end, _POINTS_OF_JSON)
    total, highest = sum(curve.counts), max(1, *curve.counts)
    figures = {"total": sum(fine.counts), "start": fine.start, "end": fine.end, "step": fine.step}
    rows: list[dict[str, Cell]] = [
        {
            "time": minute_text(curve.start + i * curve.step),
            "count": number,
            **({"": "#" * -(-number * _WIDTH // highest)} if has_bars else {}),
        }
        for i, number in enumerate(curve.counts)
    ]
    notes = []
    if not total:
        known = log.events(curve.start, curve.end)
        hint = suggestion(event, known) if known and event not in known else ""
        notes.append(f"no record of {event!r} in this time{hint}")
    title = f"{event}: {total:,} from {period_text(curve.start, curve.end)}"
    return Answer({"event": event, **figures, "counts": fine.counts}, [Table(title, rows)], notes)


@command(
    "ratelimit-mw traffic import sqlite:///traffic.db access.log",
    "zcat access.log.*.gz | ratelimit-mw traffic import redis://cache:6379/0 -",
    name="import",
)
@click.argument("url")
@logs_argument()
@format_option
@json_flag
def import_logs(url: str, access_logs: tuple[str, ...], name: str | None) -> Answer:
    """Count the requests of access logs in the traffic log at URL. A missing log is created.

    ACCESS_LOG is a file as for `replay`. Each request counts as the events request, status:STATUS and path:PATH. A log
    that is imported twice counts twice. Requests that are older than the longest retention are left out. If more than
    1% of the lines of a file cannot be read, nothing is counted.
    """
    parse_log_url(url)  # a mistake in it is an error before the work
    requests, left_out = RequestLog(access_logs, LineParser(name=name)), 0
    with closing(open_log(url, create=True)) as log:
        for number, entry in enumerate(requests.requests("importing"), 1):
            left_out += not _record(log, entry)
            if number % _AT_ONCE == 0:
                log.flush()
    counted = requests.count - left_out
    text = f"{count_text(left_out, 'request')} left out: before the longest retention, or in the future"
    shown = [format_text(requests.formats), f"{count_text(counted, 'request')} counted in {log.name}"]
    return Answer({"requests": counted, "left_out": left_out, **requests.lines_json()}, shown, [text] * bool(left_out))


def _record(log: TrafficLog, entry: LogEntry) -> bool:
    """Count a request. Return False when the log does not keep its time."""
    try:
        log.record("request", at=entry.time)
    except ConfigError:
        return False
    log.record(f"status:{entry.status}", at=entry.time)
    log.record(f"path:{entry.target.path}", at=entry.time)
    return True


traffic.add_command(show)
traffic.add_command(import_logs)
