"""The requests of an access log, for the demo to play. Sends nothing, knows no rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import IO, Final
from urllib.parse import quote

from ..access_log import LogEntry, Target
from ..log_file import LogReader
from .traffic import Request

__all__ = ["KINDS", "logged"]

KINDS: Final = ("asked once", "asked 2 to 9 times", "asked 10 to 99", "asked 100 or more")

# What may stand in a path or a query as it is; a percent sign in a query was logged as it was sent.
_PATH: Final = "/:@!$&'()*+,;=~-._"
_QUERY: Final = _PATH + "?%[]"


def logged(file: IO[bytes], most: int) -> tuple[list[Request], LogReader]:
    """The first ``most`` requests of a log in its order, and the reader, which knows what it could not read.

    Tunnels (CONNECT) have no path and are left out.
    """
    reader = LogReader(file)
    entries = list(islice((entry for entry in reader if entry.method != "CONNECT"), most))
    return list(_requests(entries)), reader


def _requests(entries: list[LogEntry]) -> Iterable[Request]:
    asked = Counter(entry.client for entry in entries)
    for entry in entries:
        yield Request(0.0, entry.client or "-", _kind(asked[entry.client]), entry.method, _sent(entry.target))


def _kind(asked: int) -> str:
    """By how often the client asks: 1, 2, 10 or 100 times at least."""
    return KINDS[sum(asked >= least for least in (2, 10, 100))]


def _sent(target: Target) -> str:
    """The target as a request line has it, such that the server decodes the very path that was logged."""
    path = quote(target.path if target.path.startswith("/") else f"/{target.path}", _PATH, errors="replace")
    return f"{path}?{quote(target.query, _QUERY, errors='replace')}" if target.query else path
