"""Reading an access log: plain or gzip, from a file or a pipe, line by line in bounded memory. Knows no rules."""

from __future__ import annotations

import gzip
import heapq
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, NamedTuple, cast

from .access_log import LONGEST_LINE, LogEntry, UnreadableLineError, parse_line

__all__ = ["DamagedLogError", "LogReader", "UnreadableLine", "in_order"]

_GZIP: Final = b"\x1f\x8b"
_SHOWN: Final = 5
_KEPT: Final = 200
_TOLD_EVERY: Final = 500
_REORDERED_WITHIN: Final = 10_000


class DamagedLogError(Exception):
    """A compressed log that is cut off or broken. What was read until then is not the whole."""


class UnreadableLine(NamedTuple):
    number: int
    why: str
    text: str


class LogReader:
    """Iterates over the requests of a log, and notes what it could not read.

    ``progress`` is told from time to time how many lines and how many bytes of the file were read.
    """

    def __init__(self, file: IO[bytes], progress: Callable[[int, int], None] = lambda _lines, _bytes: None) -> None:
        self._file = file
        self._progress = progress
        self.lines = 0
        self.invalid = 0
        self.examples: list[UnreadableLine] = []

    def __iter__(self) -> Iterator[LogEntry]:
        buffered = io.BufferedReader(cast(io.RawIOBase, self._file))
        try:
            yield from self._entries(_plain(buffered))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedLogError(str(error)) from None
        finally:
            buffered.detach()  # or it would close a file that is not its own

    def _entries(self, file: io.BufferedIOBase) -> Iterator[LogEntry]:
        for line in _lines(file):
            self.lines += 1
            if self.lines % _TOLD_EVERY == 0:
                self._progress(self.lines, self._position())
            try:
                yield parse_line(line)
            except UnreadableLineError as error:
                self._note(line, str(error))

    def _position(self) -> int:
        try:
            return self._file.tell()
        except OSError:  # a pipe
            return 0

    def _note(self, line: bytes, why: str) -> None:
        if not line.strip():
            return
        self.invalid += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(UnreadableLine(self.lines, why, line[:_KEPT].decode("utf-8", "replace").rstrip()))


def in_order(entries: Iterable[LogEntry], within: int = _REORDERED_WITHIN) -> Iterator[LogEntry]:
    """The requests by time, where they are no further out of place than ``within`` lines.

    Servers write a line when its request is done, and some logs are shuffled within each minute. A line with a time
    of its own far ahead waits for the end; it does not drag the others along.
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


def _plain(file: io.BufferedReader[io.RawIOBase]) -> io.BufferedIOBase:
    """The file without its compression, which shows in its first bytes and not in its name."""
    return gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Lines; of one that is longer than any may be only the beginning, one byte too long."""
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)
