"""``ratelimit-mw top``: show the clients that were rejected most."""

import click

from ..clock import SECOND
from ..limiter.traffic_report import top_json
from ..testmode import process_clock
from .application import SourceCommand
from .clients import checked_rule
from .output import command, json_option, note, print_json, print_table
from .recorded import last_option, open_recorded
from .rows import ALL_CLIENTS
from .source import Source


@command(
    "ratelimit-mw top ratelimit.toml",
    "ratelimit-mw top ratelimit.toml --rule login --last 1h",
    "ratelimit-mw top ratelimit.toml --limit 100 --json",
    "ratelimit-mw top --app shop:app",
    cls=SourceCommand,
)
@click.option("--rule", "name", metavar="NAME", help="Show only the clients of this rule.")
@last_option
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, show_default=True,
              help="Maximum number of clients to show.")  # fmt: skip
@json_option
def top(source: Source, name: str | None, last: float, limit: int, as_json: bool) -> None:
    """Show the clients that were rejected most, including those that rules in shadow mode would have rejected.

    The numbers are those of the traffic log, so they include all workers. They need the setting traffic_clients = true.
    The log keeps a bounded number of clients, so a client may have been rejected more often than shown: at most by the
    number under "error".
    """
    end = process_clock() / SECOND
    rule = None if name is None else checked_rule(source, name).name
    with open_recorded(source, needs_clients=True) as log:
        found = top_json(log, end - last, end, source.rules, rule, limit)
    if as_json:
        print_json(found)
        return
    clients = found["clients"]
    print_table(log.name, [{**each, "client": each["client"] or ALL_CLIENTS} for each in clients])
    if not clients:
        note("no rejection is recorded in this time")
