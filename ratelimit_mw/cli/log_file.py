"""Reads an access log line by line in bounded memory: plain or gzip, from a file or a pipe."""

from __future__ import annotations

import gzip
import heapq
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, NamedTuple, cast

from .access_log import LONGEST_LINE, InvalidLineError, LogEntry, parse_line

_GZIP: Final = b"\x1f\x8b"
_MAX_EXAMPLES: Final = 5
_EXAMPLE_BYTES: Final = 200
_PROGRESS_LINES: Final = 500
_SORTED_LINES: Final = 10_000


class DamagedLogError(Exception):
    """A compressed log is truncated or corrupt, so the requests read before are not all of it."""


class InvalidLine(NamedTuple):
    number: int
    reason: str
    text: str


class LogReader:
    """Iterates over the requests of a log, counts its lines, and keeps examples of invalid lines.

    ``progress`` is called every 500 lines with the number of lines and of bytes.
    """

    def __init__(self, file: IO[bytes], progress: Callable[[int, int], None] = lambda _lines, _bytes: None) -> None:
        self._file = file
        self._progress = progress
        self.lines = 0
        self.invalid = 0
        self.examples: list[InvalidLine] = []

    def __iter__(self) -> Iterator[LogEntry]:
        buffered = io.BufferedReader(cast(io.RawIOBase, self._file))
        try:
            yield from self._entries(_decompressed(buffered))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedLogError(str(error)) from None
        finally:
            buffered.detach()  # or it would close the file of the caller

    def _entries(self, file: io.BufferedIOBase) -> Iterator[LogEntry]:
        for line in _lines(file):
            self.lines += 1
            if self.lines % _PROGRESS_LINES == 0:
                self._progress(self.lines, self._position())
            try:
                yield parse_line(line)
            except InvalidLineError as error:
                self._add_invalid(line, str(error))

    def _position(self) -> int:
        try:
            return self._file.tell()
        except OSError:  # a pipe
            return 0

    def _add_invalid(self, line: bytes, reason: str) -> None:
        if not line.strip():
            return
        self.invalid += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(
                InvalidLine(self.lines, reason, line[:_EXAMPLE_BYTES].decode("utf-8", "replace").rstrip())
            )


def in_order(entries: Iterable[LogEntry], within: int = _SORTED_LINES) -> Iterator[LogEntry]:
    """Yield the requests by time, when none of them is more than ``within`` lines out of place.

    Servers write a line at the end of its request, and some logs are shuffled within each minute. A line with a wrong
    time far in the future comes last and does not affect the others.
    """
    waiting: list[tuple[int, int, LogEntry]] = []
    for number, entry in enumerate(entries):
        item = (entry.time, number, entry)
        if number < within:
            heapq.heappush(waiting, item)
        else:
            yield heapq.heappushpop(waiting, item)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def _decompressed(file: io.BufferedReader[io.RawIOBase]) -> io.BufferedIOBase:
    """Decompress gzip, which is detected by the first bytes and not by the file name."""
    return gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the lines. Of a line over the maximum only the beginning is read, one byte more than the maximum."""
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)
