"""``ratelimit-mw traffic import``: count the requests of access logs in a traffic log."""

from typing import Final

import click

from ...errors import ConfigError
from ...operations import Answer
from ...settings import Settings
from ...traffic import TrafficLog
from ..access_log import LogEntry
from ..clients import open_log
from ..log_formats import LineParser
from ..logs import AccessLogs, field_option, format_option, format_text, logs_argument, size_of
from ..output import Failure, command, count_text, json_flag
from ..replay.simulation import LogClients

_AT_ONCE: Final = 10_000
"""The requests of one write: fewer than the counts that may wait."""


@command(
    "ratelimit-mw traffic import sqlite:///traffic.db access.log",
    "ratelimit-mw traffic import sqlite:///traffic.db access.log access.log.2.gz --clients",
    "zcat access.log.*.gz | ratelimit-mw traffic import redis://cache:6379/0 -",
    name="import",
)
@click.argument("url")
@logs_argument()
@format_option
@field_option
@click.option("--clients", is_flag=True, help="Record the IP addresses as the clients of the event request.")
@json_flag
def import_logs(
    url: str, access_logs: tuple[str, ...], name: str | None, fields: dict[str, str], clients: bool
) -> Answer:
    """Count the requests of access logs in the traffic log at URL. A missing log is created.

    ACCESS_LOG is a file as for `replay`. Each request counts as the events request, status:STATUS and path:PATH. A log
    that is imported twice counts twice. Requests that are older than the longest retention are left out. If more than
    1% of the lines of a file cannot be read, nothing is counted. A pipe is read once, so its error has the number of
    requests that are counted.
    """
    log, counted, left_out = open_log(url, create=True), 0, 0
    parser, client_of = LineParser(fields, name=name or ""), LogClients(Settings())
    if size_of(access_logs) is not None:  # a pipe is read once
        _check_logs(access_logs, parser)
    logs = AccessLogs(access_logs, parser, "importing")
    for _, entry in logs.read():
        if _record(log, entry, client_of(entry) if clients and entry.client else None):
            counted += 1
            if counted % _AT_ONCE == 0:
                log.flush()
        else:
            left_out += 1
    log.close()
    try:
        logs.finish(counted + left_out)
    except Failure as failure:
        if not counted:
            raise
        already = f"{count_text(counted, 'request')} are counted in {log.name} already"
        raise Failure(f"{failure.message}. {already}") from None
    notes = []
    if left_out:
        notes.append(f"{count_text(left_out, 'request')} left out: before the longest retention, or in the future")
    shown = [format_text(logs.formats), f"{count_text(counted, 'request')} counted in {log.name}"]
    return Answer({"requests": counted, "left_out": left_out, **logs.as_json()}, shown, notes)


def _check_logs(paths: tuple[str, ...], parser: LineParser) -> None:
    """Read the logs, and fail before anything is counted: requests that are imported again would count twice."""
    logs = AccessLogs(paths, parser, "checking")
    logs.check(sum(1 for _ in logs.read()))


def _record(log: TrafficLog, entry: LogEntry, client: str | None) -> bool:
    """Count a request. Return False when the log does not keep its time."""
    try:
        log.record("request", client, at=entry.time)
    except ConfigError:
        return False
    log.record(f"status:{entry.status}", at=entry.time)
    log.record(f"path:{entry.target.path}", at=entry.time)
    return True
