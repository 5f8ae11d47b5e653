"""Reads several access logs as one, by time. The files may overlap, and may be given in any order."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import click

from .access_log import LogEntry, LogReader, in_order
from .output import Failure, count_text, note

_FIRST: Final = 1000  # the start of a file is the earliest of these requests
_AT_ONCE: Final = 10_000  # places that a line may be out of order; the open files share them
_AT_LEAST: Final = 100
_Head = tuple[float, int, LogEntry, Iterator[LogEntry]]

LOG: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)


def check_paths(_ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Reject a file that is given twice: its requests would count twice."""
    real = [path if path == "-" else str(Path(path).resolve()) for path in paths]
    for path, resolved in zip(paths, real, strict=True):
        if real.count(resolved) > 1:
            raise click.BadParameter(f"{path!r} is given twice, so its requests would count twice")
    return paths


def logs_argument(required: bool = True) -> Callable[[Any], Any]:
    """Return the argument of a command that takes access logs."""
    name = "ACCESS_LOG..." if required else "[ACCESS_LOG]..."
    return click.argument("access_logs", metavar=name, nargs=-1, required=required, type=LOG, callback=check_paths)


def size_of(paths: Sequence[str]) -> int | None:
    """Return the bytes of all files; None when one of them is a pipe, which can be read only once."""
    return sum(Path(path).stat().st_size for path in paths) if all(map(_is_file, paths)) else None


class LogFiles:
    """Iterates over the requests of access logs by time. A file is open only while its requests are due.

    Args:
        paths: The files; "-" is stdin.
        parse: Parses a line.
        progress: Gets the lines and bytes so far.
    """

    def __init__(
        self,
        paths: Sequence[str],
        parse: Callable[[bytes], LogEntry],
        progress: Callable[[int, int], None] = lambda _lines, _bytes: None,
    ) -> None:
        self._paths = paths
        self._parse = parse
        self._progress = progress
        self._readers: dict[str, LogReader] = {}
        self._positions: dict[str, tuple[int, int]] = {}

    def as_json(self) -> dict[str, Any]:
        """Return the number of lines, those of each format, and the invalid ones with the first of each file."""
        readers = {path: self._readers[path] for path in self._paths if path in self._readers}
        return {
            "formats": self.formats,
            "lines": sum(reader.lines for reader in readers.values()),
            "invalid": sum(reader.invalid for reader in readers.values()),
            "invalid_examples": [{"file": path, **each} for path in readers for each in readers[path].examples],
        }

    @property
    def formats(self) -> dict[str, int]:
        """The formats that were found, and the number of their lines; the most frequent first."""
        formats = Counter[str]()
        for reader in self._readers.values():
            formats.update(reader.formats)
        return dict(formats.most_common())

    def __iter__(self) -> Iterator[LogEntry]:
        if len(self._paths) == 1:
            return self._read(self._paths[0], _AT_ONCE)
        return self._merge()

    def _merge(self) -> Iterator[LogEntry]:
        """Merge the files. One that starts later is opened when its first request is due.

        At one time, a file that starts earlier comes first, so the order of the arguments changes nothing.
        """
        by_start = sorted((self._start(path), path) for path in self._paths)
        starts = [(start, i, path) for i, (start, path) in enumerate(by_start)][::-1]
        heads: list[_Head] = []
        while starts or heads:
            while starts and (not heads or starts[-1][0] <= heads[0][0]):
                _, i, path = starts.pop()
                _push(heads, i, self._read(path, max(_AT_LEAST, _AT_ONCE // (len(heads) + 1))))
            if heads:
                _, i, entry, entries = heapq.heappop(heads)
                yield entry
                _push(heads, i, entries)

    def _start(self, path: str) -> float:
        """Return the time of the first request. A pipe is read once, so it is opened at once."""
        if not _is_file(path):
            return 0
        with Path(path).open("rb") as file:
            return min((entry.time for entry in islice(LogReader(file, parse=self._parse), _FIRST)), default=0)

    def _read(self, path: str, within: int) -> Iterator[LogEntry]:
        with click.open_file(path, "rb") as file:
            yield from in_order(self._reader(path, file), within)

    def _reader(self, path: str, file: IO[bytes]) -> LogReader:
        def update(lines: int, position: int) -> None:
            self._positions[path] = lines, position
            self._progress(*map(sum, zip(*self._positions.values(), strict=True)))

        self._readers[path] = LogReader(file, update, self._parse)
        return self._readers[path]

    def finish(self, requests: int) -> None:
        """Print the invalid lines of each file, and check them."""
        for path in self._paths:
            reader = self._readers[path]
            reader.show_invalid(f"{path}: " if len(self._paths) > 1 else "")
            if requests and not reader.has_requests:
                note(f"{path}: contains no request")
        self.check(requests)

    def check(self, requests: int) -> None:
        """Raise `Failure` for a file that is not understood, and when the files have no request."""
        for path in self._paths:
            self._readers[path].check_read(_name(path))
        if not requests:
            raise Failure(f"{', '.join(map(_name, self._paths))}: contains no request")


def format_text(formats: Mapping[str, int]) -> str:
    """Return the formats of a log for its reader, with the number of lines where there are several."""
    if len(formats) == 1:
        return f"format: {next(iter(formats))}"
    return "formats: " + ", ".join(f"{name} ({count_text(lines, 'line')})" for name, lines in formats.items())


def _push(heads: list[_Head], number: int, entries: Iterator[LogEntry]) -> None:
    entry = next(entries, None)
    if entry is not None:
        heapq.heappush(heads, (entry.time, number, entry, entries))


def _is_file(path: str) -> bool:
    return path != "-" and Path(path).is_file()


def _name(path: str) -> str:
    return "<stdin>" if path == "-" else path
