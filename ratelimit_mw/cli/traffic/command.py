"""``ratelimit-mw traffic``: show the events of a traffic log, or the curve of one."""

import difflib
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ...operations.times import minute_text
from ...operations.traffic_report import missing_text
from ...traffic import Curve, TrafficLog
from ..clients import open_log
from ..output import Cell, command, json_option, note, print_json, print_table
from ..replay.picture import check_picture, theme_option
from .access_logs import import_logs
from .csv_text import csv_text
from .expire import expire
from .source import read_time

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


class _Query(NamedTuple):
    """The arguments and options of ``show``."""

    url: str
    event: str | None
    start: float
    end: float
    by: str | None
    top: int | None
    points: int | None
    plot: bool
    picture: Path | None
    theme: str
    as_csv: bool
    as_json: bool


@command(
    "ratelimit-mw traffic sqlite:///traffic.db",
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 7d --plot",
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 2026-01-01 --to 2026-02-01 --picture curve.svg",
    "ratelimit-mw traffic redis://cache:6379/0 url_shorten --by 192.0.2.7 --csv",
    "ratelimit-mw traffic sqlite:///traffic.db rule:api:rejected --from 7d --top 20",
    name="show",
)
@click.argument("url")
@click.argument("event", required=False)
@click.option("--from", "start", metavar="TIME", default="24h", show_default=True, callback=read_time,
              help="The start of the range: a duration before now, a date or a time.")  # fmt: skip
@click.option("--to", "end", metavar="TIME", default="0s", show_default="now", callback=read_time,
              help="The end of the range, such as 2026-01-31T12:00.")  # fmt: skip
@click.option("--by", metavar="CLIENT", help="Count only the records of this client.")
@click.option("--top", type=click.IntRange(1, 1_000), help="Show the clients with the highest counts, this many.")
@click.option("--points", type=click.IntRange(2, 10_000), help="Maximum counts. Default: 50 in a table, else 300.")
@click.option("--plot", is_flag=True, help="Draw the curve in the terminal.")
@click.option("--picture", type=click.Path(path_type=Path), metavar="PICTURE", callback=check_picture,
              help="Draw the curve, as .png or .svg.")  # fmt: skip
@theme_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def show(**options: Any) -> None:
    """Show the counts of EVENT in the traffic log at URL, its top clients, or all events and their totals.

    URL is the setting `traffic_log` of your application, such as sqlite:///traffic.db. Times are in UTC. The first and
    the last count are whole: they start and end at multiples of their length.
    """
    query = _Query(**options)
    is_drawn = query.plot or query.picture is not None
    if query.event is None and (query.by or is_drawn or query.top):
        raise click.UsageError("name an EVENT for --by, --plot, --picture and --top")
    if query.top and (query.by or is_drawn or query.points):
        raise click.UsageError("--top has no curve. Leave out --by, --plot, --picture and --points")
    with closing(open_log(query.url)) as log:
        if query.event is None:
            _show_events(log, query)
        elif query.top:
            _show_clients(log, query, query.event, query.top)
        else:
            _show_curve(log, query, query.event)


def _show_curve(log: TrafficLog, query: _Query, event: str) -> None:
    by, picture = query.by, query.picture
    if picture is not None:
        from ..replay.plot import THEMES
        from .plot import draw  # raises MissingExtraError without matplotlib
    points = query.points or (300 if query.as_csv or query.as_json or picture else 50)
    curve = log.curve(event, query.start, query.end, points, by)
    total = sum(curve.counts)
    title = f"{event} by {by}" if by is not None else event
    period = f"{minute_text(curve.start)} to {minute_text(curve.end)} UTC"
    if picture is not None:
        draw(curve, title, period, picture, THEMES[query.theme])
    if query.as_json:
        start_end = {"start": curve.start, "end": curve.end, "step": curve.step}
        print_json({"event": event, "by": by, "total": total, **start_end, "counts": curve.counts})
    elif query.as_csv:
        _print_csv(curve)
    elif picture is None:
        _print_curve(curve, f"{title}: {total:,} from {period}", query.plot)
    if not any(curve.counts):
        _note_nothing(log, event, curve)


def _show_clients(log: TrafficLog, query: _Query, event: str, top: int) -> None:
    start, end = query.start, query.end
    clients = log.top(event, start, end, top)
    if query.as_json:
        rows = [each._asdict() for each in clients]
        print_json({"event": event, "from": start, "to": end, "clients": rows, "complete_from": clients.complete_from})
    elif query.as_csv:
        click.echo(csv_text([("client", "total"), *clients]), nl=False)
    else:
        title = f"{event}: clients from {minute_text(start)} to {minute_text(end)} UTC"
        print_table(title, [each._asdict() for each in clients])
    if missing := missing_text(clients.complete_from):
        note(missing)
    if not clients:
        note(f"no client of {event!r} is recorded in this time")


def _show_events(log: TrafficLog, query: _Query) -> None:
    start, end = query.start, query.end
    events = log.events(start, end)
    if query.as_json:
        print_json({"from": start, "to": end, "events": events})
        return
    if query.as_csv:
        click.echo(csv_text([("event", "total"), *events.items()]), nl=False)
        return
    title = f"{log.name}: events from {minute_text(start)} to {minute_text(end)} UTC"
    print_table(title, [{"event": event, "total": total} for event, total in events.items()])
    if not events:
        note("no event is recorded in this time")


def _print_csv(curve: Curve) -> None:
    rows = [(minute_text(curve.start + i * curve.step), number) for i, number in enumerate(curve.counts)]
    click.echo(csv_text([("time", "count"), *rows]), nl=False)


def _print_curve(curve: Curve, title: str, has_bars: bool) -> None:
    highest = max(1, *curve.counts)
    rows: list[dict[str, Cell]] = []
    for i, number in enumerate(curve.counts):
        bar = {"": "#" * -(-number * _WIDTH // highest)} if has_bars else {}
        rows.append({"time": minute_text(curve.start + i * curve.step), "count": number, **bar})
    print_table(title, rows)


def _note_nothing(log: TrafficLog, event: str, curve: Curve) -> None:
    """Print a note on an event without a record, with the name of a similar one."""
    known = log.events(curve.start, curve.end)
    close = difflib.get_close_matches(event, known, 1)
    hint = f". Did you mean {close[0]!r}?" if close and event not in known else ""
    note(f"no record of {event!r} in this time{hint}")


traffic.add_command(show)
traffic.add_command(import_logs)
traffic.add_command(expire)
