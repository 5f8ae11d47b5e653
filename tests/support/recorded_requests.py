"""10,000 requests of four days, recorded by a real site (elastic/examples, Apache-2.0)."""

from __future__ import annotations

import gzip
from typing import NamedTuple

from folders import SUPPORT


class RecordedRequest(NamedTuple):
    """A request: its time in seconds since the first one, and numbers instead of client and path."""

    second: int
    client: int
    path: int


def recorded_requests() -> list[RecordedRequest]:
    """Return the requests in the order of the log, which differs from that of their times."""
    lines = gzip.decompress((SUPPORT / "requests.txt.gz").read_bytes()).splitlines()
    return [RecordedRequest(*map(int, line.split())) for line in lines]
