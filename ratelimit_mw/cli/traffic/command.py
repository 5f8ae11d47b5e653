"""``ratelimit-mw traffic``: show the events of a traffic log, or the curve of one, and free its disk space."""

from contextlib import closing
from pathlib import Path
from typing import Final

import click

from ...clock import SECOND
from ...errors import ConfigError, suggestion
from ...operations import Answer, Cell, Table
from ...operations.times import minute_text, seconds_of, span_text
from ...operations.traffic_report import missing_text
from ...quota import parse_duration
from ...testmode import process_clock
from ...traffic import Curve, TrafficLog
from ..clients import open_log
from ..output import command, json_flag, parsed, wants_json
from ..plot import ALLOWED, INK, ascii_text, edges_of, picture_option, style_times
from ..plot import picture as open_picture
from .access_logs import import_logs

_WIDTH: Final = 50
"""The longest bar of a curve in the terminal, in characters."""


class TrafficGroup(click.Group):
    """The commands of a traffic log. Without a name, the command is ``show``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else ["show", *args])


@click.group(cls=TrafficGroup)
def traffic() -> None:
    """Show the counts of a traffic log, import access logs, or free disk space.

    `traffic URL [EVENT]` is short for `traffic show URL [EVENT]`.
    """


def _read_time(text: str) -> float:
    """Return the seconds since 1970 of a time: a duration before now, a date or a time."""
    try:
        return (process_clock() - parse_duration(text)) / SECOND
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
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 2026-01-01 --to 2026-02-01 --picture curve.svg",
    "ratelimit-mw traffic redis://cache:6379/0 url_shorten --by 192.0.2.7 --json",
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 7d --top 20",
    name="show",
)
@click.argument("url")
@click.argument("event", required=False)
@click.option("--from", "start", metavar="TIME", default="24h", show_default=True, callback=parsed(_read_time),
              help="The start of the range: a duration before now, a date or a time.")  # fmt: skip
@click.option("--to", "end", metavar="TIME", default="0s", show_default="now", callback=parsed(_read_time),
              help="The end of the range, such as 2026-01-31T12:00.")  # fmt: skip
@click.option("--by", metavar="CLIENT", help="Count only the records of this client.")
@click.option("--top", type=click.IntRange(1, 1_000), help="Show the clients with the highest counts, this many.")
@click.option("--points", type=click.IntRange(2, 10_000), help="Maximum counts. Default: 50 in a table, else 300.")
@click.option("--plot", is_flag=True, help="Draw the curve in the terminal.")
@picture_option("--picture", "Draw the curve, as .png or .svg.")
@json_flag
def show(
    url: str,
    event: str | None,
    start: float,
    end: float,
    by: str | None,
    top: int | None,
    points: int | None,
    plot: bool,
    picture: Path | None,
) -> Answer:
    """Show the counts of EVENT in the traffic log at URL, its top clients, or all events and their totals.

    URL is the setting `traffic_log` of your application, such as sqlite:///traffic.db. Times are in UTC. The first and
    the last count are whole: they start and end at multiples of their length.
    """
    is_drawn = plot or picture is not None
    if event is None and (by or is_drawn or top):
        raise click.UsageError("name an EVENT for --by, --plot, --picture and --top")
    if top and (by or is_drawn or points):
        raise click.UsageError("--top has no curve. Leave out --by, --plot, --picture and --points")
    is_for_programs = picture is not None or wants_json()
    with closing(open_log(url)) as log:
        if event is None:
            answer = _events(log, start, end)
        elif top:
            answer = _clients(log, event, start, end, top)
        else:
            curve = log.curve(event, start, end, points or (300 if is_for_programs else 50), by)
            answer = _counts(log, event, curve, by, plot)
            if picture is not None:
                _draw(curve, f"{event} by {by}" if by is not None else event, picture)
    return answer if picture is None else answer._replace(shown=())


def _counts(log: TrafficLog, event: str, curve: Curve, by: str | None, has_bars: bool) -> Answer:
    total, highest = sum(curve.counts), max(1, *curve.counts)
    figures = {"total": total, "start": curve.start, "end": curve.end, "step": curve.step, "counts": curve.counts}
    rows: list[dict[str, Cell]] = [
        {
            "time": minute_text(curve.start + i * curve.step),
            "count": number,
            **({"": "#" * -(-number * _WIDTH // highest)} if has_bars else {}),
        }
        for i, number in enumerate(curve.counts)
    ]
    name = f"{event} by {by}" if by is not None else event
    notes = []
    if not any(curve.counts):
        known = log.events(curve.start, curve.end)
        hint = suggestion(event, known) if known and event not in known else ""
        notes.append(f"no record of {event!r} in this time{hint}")
    title = f"{name}: {total:,} from {_period(curve.start, curve.end)}"
    return Answer({"event": event, "by": by, **figures}, [Table(title, rows)], notes)


def _clients(log: TrafficLog, event: str, start: float, end: float, top: int) -> Answer:
    clients = log.top(event, start, end, top)
    rows = [each._asdict() for each in clients]
    json = {"event": event, "from": start, "to": end, "clients": rows, "complete_from": clients.complete_from}
    notes = [missing_text(clients.complete_from)] if missing_text(clients.complete_from) else []
    if not clients:
        notes.append(f"no client of {event!r} is recorded in this time")
    return Answer(json, [Table(f"{event}: clients from {_period(start, end)}", rows)], notes)


def _events(log: TrafficLog, start: float, end: float) -> Answer:
    events = log.events(start, end)
    rows: list[dict[str, str | int]] = [{"event": event, "total": total} for event, total in events.items()]
    notes = [] if events else ["no event is recorded in this time"]
    table = Table(f"{log.name}: events from {_period(start, end)}", rows)
    return Answer({"from": start, "to": end, "events": events}, [table], notes)


def _period(start: float, end: float) -> str:
    return f"{minute_text(start)} to {minute_text(end)} UTC"


def _draw(curve: Curve, title: str, path: Path) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    edges = edges_of(curve.start, curve.step, len(curve.counts))
    with open_picture(path, 4) as figure:
        axes = figure.subplots()
        axes.stairs(curve.counts, edges, fill=True, color=ALLOWED, label="count")
        axes.stairs(curve.counts, edges, color=INK, linewidth=1.1)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(1, *curve.counts) * 1.06)
        text = ascii_text(title, 90).replace("$", r"\$")  # no formula
        style_times(axes, f"count per {span_text(curve.step)}", _period(curve.start, curve.end), text)


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


traffic.add_command(show)
traffic.add_command(import_logs)
traffic.add_command(expire)
