"""The body of a WSGI request, read ahead of the application, which then reads the same bytes."""

import io
from collections.abc import Iterator, MutableMapping
from typing import Any

from ..keys.features import INVALID


def read_body(environ: MutableMapping[str, Any], limit: int, is_late: bool = False) -> object:
    """Return the body; None without one, ``INVALID`` for one that is too long, cut short or of unknown length.

    ``is_late``: code of the application may have read it before. Then an empty chunked body is ``INVALID``, too.

    The bytes are put back in front of ``wsgi.input``. No byte is read that the application could not read.
    """
    header = environ.get("CONTENT_LENGTH") or ""
    has_end = environ.get("wsgi.input_terminated", False)
    is_chunked = "HTTP_TRANSFER_ENCODING" in environ
    if has_end and (not header or is_chunked):
        content, error = _read(environ["wsgi.input"], limit + 1)
        is_lost = is_late and is_chunked and not content
        complete = error is None and len(content) <= limit and not is_lost
    else:
        length = int(header) if header.isascii() and header.isdigit() and len(header) < 20 else None
        if not header or length == 0:
            return None
        if length is None or length > limit:
            return INVALID
        content, error = _read(environ["wsgi.input"], length)
        complete = len(content) == length
    rest = environ["wsgi.input"] if error is None else BrokenInput(error)
    environ["wsgi.input"] = io.BytesIO(content) if complete else ReplayedInput(content, rest)
    return (content or None) if complete else INVALID


class ReplayedInput:
    """A ``wsgi.input`` whose start was read already: the start again, then the rest."""

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
        """Return all lines, or as many as hold ``hint`` bytes."""
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


class BrokenInput:
    """The rest of a stream that the server could not read. Each read raises the error of the server."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def read(self, *_: int) -> bytes:
        raise self._error

    readline = read


def _read(stream: Any, size: int) -> tuple[bytes, OSError | None]:
    """Read ``size`` bytes, fewer only at the end or before an error: one read may return less than it is asked for."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := stream.read(size)):
            parts.append(part)
            size -= len(part)
    except OSError as error:
        return b"".join(parts), error
    return b"".join(parts), None
