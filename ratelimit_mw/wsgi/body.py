"""The body of a WSGI request, read ahead of the application, which reads the same bytes all the same."""

from __future__ import annotations

import io
from collections.abc import Iterator, MutableMapping
from typing import Any

from ..keys.features import INVALID

__all__ = ["Replayed", "read_body"]


def read_body(environ: MutableMapping[str, Any], limit: int) -> object:
    """The body; None when there is none, ``INVALID`` for one that is too long, cut short or of an unknown length.

    What was read stands in front of ``wsgi.input`` again. Nothing is read that the application could not read.
    """
    told = environ.get("CONTENT_LENGTH") or ""
    ends_by_itself = environ.get("wsgi.input_terminated", False)
    if ends_by_itself and (not told or "HTTP_TRANSFER_ENCODING" in environ):
        content = _read(environ["wsgi.input"], limit + 1)
        complete = len(content) <= limit
    else:
        length = int(told) if told.isascii() and told.isdigit() and len(told) < 20 else None
        if not told or length == 0:
            return None
        if length is None or length > limit:
            return INVALID
        content = _read(environ["wsgi.input"], length)
        complete = len(content) == length
    environ["wsgi.input"] = io.BytesIO(content) if complete else Replayed(content, environ["wsgi.input"])
    return (content or None) if complete else INVALID


class Replayed:
    """A stream of which the start was read already: that again, then the rest of it."""

    def __init__(self, start: bytes, rest: Any) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest

    def read(self, size: int | None = -1) -> bytes:
        start = self._start.read(size)
        if size is None or size < 0:
            return start + self._rest.read()  # type: ignore[no-any-return]
        return start if len(start) == size else start + self._rest.read(size - len(start))

    def readline(self, size: int | None = -1) -> bytes:
        line = self._start.readline(size)
        if line.endswith(b"\n") or len(line) == size:
            return line
        if size is None or size < 0:
            return line + self._rest.readline()  # type: ignore[no-any-return]
        return line + self._rest.readline(size - len(line))  # type: ignore[no-any-return]

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """All lines, or as many as it takes to have ``hint`` bytes."""
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


def _read(stream: Any, size: int) -> bytes:
    """So many bytes, fewer only at the end of the stream: a read may give less than it was asked for."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
