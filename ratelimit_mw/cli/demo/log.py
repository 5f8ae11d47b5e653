"""The requests of an access log, for the demo to send."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import IO, Final
from urllib.parse import quote

from ..access_log import LogEntry, Target
from ..log_file import LogReader
from .traffic import DemoRequest

LOG_KINDS: Final = ("1 request", "2 to 9 requests", "10 to 99 requests", "100 requests or more")

_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=~-._"
# A percent sign of a query is in the log as it was sent.
_QUERY_CHARACTERS: Final = _PATH_CHARACTERS + "?%[]"


def read_requests(file: IO[bytes], most: int) -> tuple[list[DemoRequest], LogReader]:
    """Return the first ``most`` requests of a log, without times, and the reader with its counts.

    Tunnels (CONNECT) are left out, because they have no path.
    """
    reader = LogReader(file)
    entries = list(islice((entry for entry in reader if entry.method != "CONNECT"), most))
    sizes = Counter(entry.client for entry in entries)
    return [_request(entry, sizes[entry.client]) for entry in entries], reader


def _request(entry: LogEntry, client_requests: int) -> DemoRequest:
    kind = LOG_KINDS[sum(client_requests >= least for least in (2, 10, 100))]
    body = "{}" if entry.method == "POST" else None
    return DemoRequest(0.0, entry.client or "-", kind, entry.method, _target(entry.target), body)


def _target(target: Target) -> str:
    """Encode a target for a request line, so that the server decodes the path of the log."""
    path = quote(target.path if target.path.startswith("/") else f"/{target.path}", _PATH_CHARACTERS, errors="replace")
    return f"{path}?{quote(target.query, _QUERY_CHARACTERS, errors='replace')}" if target.query else path
