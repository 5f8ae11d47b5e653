"""``ratelimit-mw traffic import``: count the requests of access logs in a traffic log."""

from typing import Final

import click

from ...errors import ConfigError
from ...traffic import TrafficLog
from ..access_log import LogEntry
from ..json_lines import LineParser
from ..log_files import logs_argument
from ..output import command, count_text, json_option, note, print_json
from ..replay.logs import field_option, open_logs
from .source import open_log

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
@field_option
@click.option("--clients", is_flag=True, help="Record the IP addresses as the clients of the event request.")
@json_option
def import_logs(url: str, access_logs: tuple[str, ...], fields: dict[str, str], clients: bool, as_json: bool) -> None:
    """Count the requests of access logs in the traffic log at URL. A missing log is created.

    ACCESS_LOG is a file as for `replay`. Each request counts as the events request, status:STATUS and path:PATH. A log
    that is imported twice counts twice. Requests that are older than the longest retention are left out.
    """
    log, counted, left_out = open_log(url, create=True), 0, 0
    parser = LineParser(fields)
    with open_logs(access_logs, parser, "importing") as logs:
        for entry in logs:
            if _record(log, entry, clients):
                counted += 1
                if counted % _AT_ONCE == 0:
                    log.flush()
            else:
                left_out += 1
    log.close()
    logs.finish(counted + left_out)
    if left_out:
        note(f"{count_text(left_out, 'request')} left out: before the longest retention, or in the future")
    if as_json:
        print_json({"requests": counted, "left_out": left_out, **logs.as_json()})
    else:
        click.echo(f"{count_text(counted, 'request')} counted in {log.name}")


def _record(log: TrafficLog, entry: LogEntry, clients: bool) -> bool:
    """Count a request. Return False when the log does not keep its time."""
    try:
        log.record("request", entry.client if clients else None, at=entry.time)
    except ConfigError:
        return False
    log.record(f"status:{entry.status}", at=entry.time)
    log.record(f"path:{entry.target.path}", at=entry.time)
    return True
