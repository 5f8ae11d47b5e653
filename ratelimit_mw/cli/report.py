"""``ratelimit-mw report``: show what each rule allowed and rejected, and would have rejected in shadow mode."""

from typing import Any, Final

from ..clock import SECOND
from ..limiter.traffic_report import report_json
from ..testmode import process_clock
from .application import SourceCommand
from .output import Cell, command, json_option, note, print_json, print_table
from .recorded import last_option, open_recorded
from .source import Source
from .traffic.source import minute_text

_PARTS: Final = ("banned", "denied", "unavailable")
"""The parts of ``rejected`` that have a column if there are any."""


@command(
    "ratelimit-mw report ratelimit.toml",
    "ratelimit-mw report ratelimit.toml --last 7d",
    "ratelimit-mw report ratelimit.toml --last 1h --json",
    "ratelimit-mw report --app shop:app",
    cls=SourceCommand,
)
@last_option
@json_option
def report(source: Source, last: float, as_json: bool) -> None:
    """Show how many requests each rule allowed and rejected, or would have rejected in shadow mode.

    The numbers are those of the traffic log, so they include all workers, which write every 15 seconds. The start is
    rounded down as the log keeps its counts: to the minute for the last day.
    """
    end = process_clock() / SECOND
    start = end - last
    with open_recorded(source) as log:
        summary = report_json(log, start, end, source.rules)
    if as_json:
        print_json(summary)
        return
    rows = summary["rules"]
    parts = [part for part in _PARTS if any(row[part] for row in rows)]
    title = f"{log.name}: requests from {minute_text(start)} to {minute_text(end)} UTC"
    print_table(title, [_cells(row, parts) for row in rows])
    if not any(row["total"] for row in rows):
        note("no request is recorded in this time")


def _cells(row: dict[str, Any], parts: list[str]) -> dict[str, Cell]:
    return {
        "rule": row["rule"] or "(no rule)",
        "mode": row["mode"],
        "allowed": row["allowed"],
        "rejected": row["rejected"],
        **{f"of which {part}": row[part] for part in parts},
        "would be rejected": row["shadow"],
        "share": row["share"],
    }
