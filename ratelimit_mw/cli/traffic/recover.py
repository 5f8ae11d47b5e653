"""``ratelimit-mw traffic recover``: copy what can be read of a damaged traffic log."""

from pathlib import Path
from typing import Final

import click

from ...errors import ConfigError
from ...traffic.address import parse_log_url, without_retention
from ...traffic.retention import Retention
from ...traffic.sqlite import SqliteCounts
from ...traffic.sqlite_recovery import recover
from ..output import Failure, command, json_option, note, print_json, print_table

_COUNTS: Final = {
    "totals": "totals of events",
    "clients": "totals of clients",
    "dropped": "sketches of clients",
    "cells": "sketches of events",
}


@command(
    "ratelimit-mw traffic recover sqlite:///traffic.db sqlite:///recovered.db",
    "ratelimit-mw traffic recover 'sqlite:///traffic.db?retention=1m:1d,1h:90d' sqlite:///recovered.db",
    name="recover",
)
@click.argument("url")
@click.argument("new_url")
@json_option
def recover_log(url: str, new_url: str, as_json: bool) -> None:
    """Copy what can be read of the damaged traffic log at URL into a new log at NEW_URL.

    Both are files of SQLite. The damaged file stays as it is. Add the retention of the log to URL if the command asks
    for it. Stop your application before you replace its file with the new one.
    """
    damaged, new = _counts_of(url), _counts_of(new_url)
    if not Path(damaged.path).exists():
        raise Failure(f"there is no file {damaged.path}")
    named = without_retention(url)[1]
    found = recover(damaged, new, None if named is None else Retention(named))
    if as_json:
        print_json({"tables": {each.table: {"rows": each.rows, "complete": each.is_complete} for each in found}})
    else:
        rows = [(_COUNTS[each.table], each.rows, "yes" if each.is_complete else "no") for each in found]
        print_table(f"Recovered in {new.path}", [{"counts": a, "rows": b, "complete": c} for a, b, c in rows])
    if not all(each.is_complete for each in found):
        note(f"parts of {damaged.path} cannot be read: their counts are missing")


def _counts_of(url: str) -> SqliteCounts:
    address = parse_log_url(url)
    if address.family != "sqlite":
        raise ConfigError(f"expected a file of SQLite, such as sqlite:///traffic.db; got {url!r}")
    return SqliteCounts(str(address.place), address.retention)
