"""``ratelimit-mw report``: show what each rule allowed and rejected, and would have rejected in shadow mode."""

from datetime import UTC, datetime
from typing import Any, Final

from ..limiter.json_forms import report_of
from .live import open_limiter
from .output import Cell, command, json_option, note, print_json, print_table
from .recorded import check_recorded, last_option
from .source import Source
from .source_command import SourceCommand

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

    The numbers include all workers, which need the setting record = "outcomes" and write every five seconds. The start
    is rounded down to a full hour, or to five minutes if --last is at most 2h.
    """
    check_recorded(source, "outcomes")
    with open_limiter(source) as limiter:
        found = limiter.outcomes(last)
    summary = report_of(source.rules, found)
    if as_json:
        print_json(summary)
        return
    rows = summary["rules"]
    parts = [part for part in _PARTS if any(row[part] for row in rows)]
    span = " to ".join(f"{datetime.fromtimestamp(each, UTC):%Y-%m-%d %H:%M:%S}" for each in (found.start, found.end))
    print_table(f"{source.title}: requests from {span} UTC", [_cells(row, parts) for row in rows])
    if not found.rules:
        note("no request is recorded yet. Workers with this setting write every five seconds")


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
