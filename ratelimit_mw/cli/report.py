"""``ratelimit-mw report``: show what each rule allowed and rejected, and would have rejected in shadow mode."""

from typing import Any, Final, get_args

from ..limiter.events import Outcome
from .live import open_limiter
from .output import Cell, command, json_option, note, print_json, print_table
from .recorded import check_recorded, last_option, report_of
from .source import Source
from .source_command import SourceCommand

_ALWAYS: Final = ("allowed", "rejected", "shadow")
"""The outcomes that always have a column."""
_TITLES: Final = {"shadow": "would be rejected"}


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
    """Show what each rule allowed and rejected, and would have rejected in shadow mode.

    The numbers are those of all processes. They need the setting record = "outcomes". A process writes them every five
    seconds. The range starts with a full hour, or with full five minutes if --last is at most 2h.

    FILE contains only settings. With --app, the command also knows the rules of decorators.
    """
    check_recorded(source, "outcomes")
    with open_limiter(source) as limiter:
        found = limiter.outcomes(last)
    summary = report_of(source.rules, found)
    if as_json:
        print_json(summary)
        return
    rows = summary["rules"]
    others = [each for each in get_args(Outcome) if each not in _ALWAYS and any(row[each] for row in rows)]
    title = f"{source.title}: requests from {summary['from']} to {summary['to']}"
    print_table(title, [_cells(row, [*_ALWAYS, *others]) for row in rows])
    if not found.rules:
        note("no request is recorded yet. Processes that run with this setting write every five seconds")


def _cells(row: dict[str, Any], shown: list[str]) -> dict[str, Cell]:
    counts = {_TITLES.get(each, each): row[each] for each in shown}
    return {"rule": row["rule"] or "(no rule)", "mode": row["mode"], **counts, "share": row["share"]}
