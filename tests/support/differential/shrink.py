"""Makes a failing request shorter while it fails in the same feature."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from .hostile import HostileRequest

_TOKEN = re.compile(rb"%[0-9a-fA-F]{2}|[A-Za-z0-9]+|.", re.DOTALL)
_FEATURE = re.compile(r"[\w:-]+")
# The frame of the body, and the address with the lines that it follows from.
_KEPT = (b"content-length", b"transfer-encoding", b"x-truth", b"x-forwarded-for", b"forwarded")

Differences = Callable[[HostileRequest], Iterable[tuple[HostileRequest, str]]]


def shrunk(
    request: HostileRequest, difference: str, differences: Differences, tries: int = 500
) -> tuple[HostileRequest, str]:
    """Return the shortest request that was found with a difference in the same feature, and the difference.

    First whole lines are left out, then tokens of the first line and of the lines that are left. The body stays.
    """
    for candidate in islice(_shorter(request), tries):
        tries -= 1
        same = [found for _, found in differences(candidate) if _feature(found) == _feature(difference)]
        if same:
            return shrunk(candidate, same[0], differences, tries)
    return request, difference


def _shorter(request: HostileRequest) -> Iterator[HostileRequest]:
    head, blank, body = request.raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for i in range(1, len(lines)):
        if not lines[i].lower().startswith(_KEPT):
            yield request._replace(raw=b"\r\n".join(lines[:i] + lines[i + 1 :]) + blank + body)
    for i, line in enumerate(lines):
        start, end = (line.find(b" ") + 1, line.rfind(b" ")) if i == 0 else (line.find(b":") + 2, len(line))
        tokens = _TOKEN.findall(line[start:end])
        if line.lower().startswith(_KEPT):
            continue
        for at in range(len(tokens)):
            shorter = line[:start] + b"".join(tokens[:at] + tokens[at + 1 :]) + line[end:]
            yield request._replace(raw=b"\r\n".join([*lines[:i], shorter, *lines[i + 1 :]]) + blank + body)


def _feature(difference: str) -> str:
    match = _FEATURE.match(difference)
    return match[0] if match else ""
