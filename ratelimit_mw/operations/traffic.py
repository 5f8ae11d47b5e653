"""The operations that read the traffic log of a limiter: the outcomes of its rules, and the clients rejected most."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ..clock import SECOND
from ..errors import ConfigError
from ..limiter.limiter import Limiter
from ..quota import parse_duration
from ..stores.blocking import Call, async_call
from ..traffic import TrafficLog
from .answer import Answer, Cell, Table
from .arguments import ReportArguments, TopArguments
from .clients import ALL_CLIENTS
from .declare import operation
from .times import minute_text
from .traffic_report import missing_text, report_json, top_json

_PARTS: Final = ("banned", "denied", "unavailable", "shed")
"""The parts of ``rejected`` that have a column if there are any."""


@operation("report", "/v1/report", "FILE", "FILE --last 7d", "FILE --last 1h --json", "APP", reads_log=True)
async def report(call: Call, limiter: Limiter, arguments: ReportArguments) -> Answer:
    """Show how many requests each rule allowed and rejected, or would have rejected in shadow mode.

    The numbers are those of the traffic log, so they include all workers, which write every 15 seconds. The start is
    rounded down as the log keeps its counts: to the minute for the last day.
    """
    log, start, end = _range(limiter, arguments)
    json = await _off_loop(call, report_json, log, start, end, limiter.rules)
    rows = json["rules"]
    parts = [part for part in _PARTS if any(row[part] for row in rows)]
    title = f"{log.name}: requests from {minute_text(start)} to {minute_text(end)} UTC"
    notes = [] if any(row["total"] for row in rows) else ["no request is recorded in this time"]
    return Answer(json, [Table(title, [_cells(row, parts) for row in rows])], notes)


@operation("top", "/v1/top", "FILE", "FILE --rule login --last 1h", "FILE --limit 100 --json", "APP", reads_log=True)
async def top(call: Call, limiter: Limiter, arguments: TopArguments) -> Answer:
    """Show the clients that were rejected most, including those that rules in shadow mode would have rejected.

    The numbers are those of the traffic log, so they include all workers. They need the setting traffic_clients = true.
    In each hour, the log keeps the clients of a rule with the highest counts. If it has dropped some, a note has the
    number below which clients may be missing.
    """
    rule = None if arguments.rule is None else limiter.rules.named(arguments.rule).name
    log, start, end = _range(limiter, arguments, needs_clients=True)
    json = await _off_loop(call, top_json, log, start, end, limiter.rules, rule, arguments.limit)
    rows = [{**each, "client": each["client"] or ALL_CLIENTS} for each in json["clients"]]
    missing = missing_text(json["complete_from"])
    notes = [missing] * bool(missing) if rows else ["no rejection is recorded in this time"]
    return Answer(json, [Table(log.name, rows)], notes)


def _range(
    limiter: Limiter, arguments: ReportArguments, needs_clients: bool = False
) -> tuple[TrafficLog, float, float]:
    """Return the traffic log of a limiter, and the start and the end of the range."""
    name, log = limiter.settings.source or "the application", limiter.traffic_log
    if log is None:
        missing = 'has no traffic log. Add traffic_log = "sqlite:///traffic.db"'
    elif needs_clients and not limiter.settings.traffic_clients:
        missing = "does not record clients. Add traffic_clients = true"
    else:
        end = limiter.clocks.time() / SECOND
        return log, end - parse_duration(arguments.last) / SECOND, end
    raise ConfigError(f"{name} {missing}, and restart your application")


async def _off_loop(call: Call, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that reads the log, in a thread where an event loop would wait."""
    return await asyncio.to_thread(function, *arguments) if call is async_call else function(*arguments)


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
