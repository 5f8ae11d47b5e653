"""The body of a WSGI request, read ahead of the application, which then reads the same bytes."""

import io
from collections.abc import MutableMapping
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
        if not header:
            return None
        if length is None or length > limit:
            return INVALID
        content, error = _read(environ["wsgi.input"], length)
        complete = len(content) == length
    if complete:
        environ["wsgi.input"] = io.BytesIO(content)
        return content or None
    environ["wsgi.input"] = io.BufferedReader(ReplayedInput(content, environ["wsgi.input"], error))
    return INVALID


class ReplayedInput(io.RawIOBase):
    """A ``wsgi.input`` whose start was read already: the start again, then the rest, or the error of the server."""

    def __init__(self, start: bytes, rest: Any, error: OSError | None = None) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._start.read(len(buffer))
        if not part:
            if self._error is not None:
                raise self._error
            part = self._rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


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
