"""The access logs of a command, plain or compressed, as a temporary database of their requests."""

import io
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, cast
from weakref import finalize

import click
import msgspec
from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..keys.features import INVALID
from .access_log import MAX_LINE, HeaderLineError, InvalidLineError, LogEntry, NoRequestError
from .log_formats import NAMES_OF_FORMATS, LineParser
from .output import Failure, count_text, note, printable, progress

_AT_ONCE: Final = 1_000
"""The requests between two updates of a bar."""
_COLUMNS: Final = (TaskProgressColumn(), TextColumn("{task.fields[requests]:,} requests"), TimeRemainingColumn())
_CACHE: Final = 50_000
"""The memory of the database in KiB. The rest of it is on disk."""
_READ: Final = MAX_LINE + 2  # with the end of the line
_STORED_INVALID: Final = msgspec.msgpack.Ext(0, b"")
"""The value of an invalid feature in the database."""
_FORMATS: Final = (
    "Expected a format of --format, or JSON lines with the names of nginx, Caddy, Traefik or Envoy. A host name, a"
    " time, or a prefix of syslog or Kubernetes may precede it. With docker compose logs, add --no-log-prefix"
)


def _check_paths(_ctx: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Reject a file that is given twice: its requests would count twice."""
    real = [path if path == "-" else str(Path(path).resolve()) for path in paths]
    for path, resolved in zip(paths, real, strict=True):
        if real.count(resolved) > 1:
            raise click.BadParameter(f"{path!r} is given twice, so its requests would count twice")
    return paths


def logs_argument(required: bool = True) -> Callable[[Any], Any]:
    """Return the argument of a command that takes access logs."""
    name = "ACCESS_LOG..." if required else "[ACCESS_LOG]..."
    kind = click.Path(exists=True, dir_okay=False, allow_dash=True)
    return click.argument("access_logs", metavar=name, nargs=-1, required=required, type=kind, callback=_check_paths)


format_option = click.option("--format", "name", metavar="NAME", type=click.Choice(NAMES_OF_FORMATS),
                             help="The format of the logs. Default: that of each line. One of"
                                  f" {', '.join(NAMES_OF_FORMATS)}.")  # fmt: skip
"""The option of a command for the format of its logs."""

_MODULES: Final = {
    b"\x1f\x8b": ("gzip",),
    b"BZh": ("bz2",),
    b"\xfd7zXZ\x00": ("lzma",),
    b"\x28\xb5\x2f\xfd": ("compression.zstd", "backports.zstd"),
}
"""The modules that read a compressed file, by its first bytes."""


def _module_of(start: bytes) -> Any:
    """Return the module for a file that begins so; None for a file that is not compressed."""
    names = next((names for magic, names in _MODULES.items() if start.startswith(magic)), ())
    for name in names:
        with suppress(ImportError):
            return import_module(name)
    if names:
        raise Failure("zst needs Python 3.14 or the package backports.zstd. Or run: zstdcat FILE | ratelimit-mw ... -")
    return None


def _lines_of(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the start of each line of a file, which may be compressed."""
    buffered = io.BufferedReader(cast(io.RawIOBase, file))
    module = _module_of(buffered.peek(6))
    unpacked = io.BufferedReader(module.open(buffered)) if module else buffered
    try:
        while line := unpacked.readline(_READ):
            yield line
            while len(line) > MAX_LINE and not line.endswith(b"\n"):  # skip the rest of the line
                line = unpacked.readline(_READ)
    except Exception as error:
        raise Failure(f"{name}: cannot be read to its end: {error}") from None
    finally:
        buffered.detach()  # or it would close the file of the caller


class RequestLog:
    """The requests of access logs in a temporary database, which SQLite deletes. The logs are read once.

    The database has about the size of the logs, most of it on disk.

    Args:
        paths: The files; "-" is stdin.
        parser: Parses a line.

    Raises:
        Failure: A log is not understood, or none has a request.
    """

    def __init__(self, paths: Sequence[str], parser: LineParser) -> None:
        self._formats = Counter[str]()
        self._lines = self._invalid = self._blank = self._unread = 0
        self._sample = ""
        self.db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        finalize(self, self.db.close)
        for pragma in ("journal_mode = OFF", f"cache_size = -{_CACHE}", "temp_store = FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("CREATE TABLE request (number INTEGER PRIMARY KEY, time, data)")
        self.db.execute("BEGIN")
        self._is_sorted = True
        # A pipe has no size. Then the bar has no end.
        sizes = [Path(path).stat().st_size if Path(path).is_file() else 0 for path in paths]
        with progress("reading", sum(sizes) if all(sizes) else None, *_COLUMNS, requests=0) as update:
            rows = self._rows(dict(zip(paths, sizes, strict=True)), parser, update)
            self.db.executemany("INSERT INTO request (time, data) VALUES (?, ?)", rows)
        if self._invalid:
            note(f"{self._invalid:,} of {self._lines - self._blank:,} lines are no requests, such as {self._sample}")
        found = self.db.execute("SELECT count(*), min(time), max(time) FROM request").fetchone()
        self.count, self.first, self.last = found
        if not self.count:
            raise Failure(f"{', '.join(map(_name_of, paths))}: contains no request")

    def _rows(
        self, sizes: Mapping[str, int], parse: Callable[[bytes], LogEntry], update: Callable[..., None]
    ) -> Iterator[tuple[float, bytes]]:
        """Yield the time and the data of each request. The files are given with their sizes."""
        encode, before, done = msgspec.msgpack.Encoder().encode, 0.0, 0
        for path, size in sizes.items():
            start, self._unread = self._lines - self._blank, 0
            with click.open_file(path, "rb") as file:
                for number, line in enumerate(_lines_of(file, _name_of(path)), 1):
                    self._lines += 1
                    try:
                        entry = parse(line)
                    except InvalidLineError as error:
                        self._add_invalid(f"{_name_of(path)}, line {number}", line, error)
                        continue
                    self._formats[entry.format] += 1
                    self._is_sorted = self._is_sorted and before <= entry.time
                    before = entry.time
                    if self._lines % _AT_ONCE == 0:
                        update(requests=self._formats.total(), completed=done + file.tell() if size else None)
                    items = entry.features.items()
                    stored = {name: _STORED_INVALID if value is INVALID else value for name, value in items}
                    yield entry.time, encode(entry._replace(features=stored))
            done += size
            self._check(self._lines - self._blank - start)

    def _add_invalid(self, place: str, line: bytes, error: InvalidLineError) -> None:
        if isinstance(error, HeaderLineError) or not line.strip():
            self._blank += 1
            return
        self._invalid += 1
        is_unread = not isinstance(error, NoRequestError)
        if not self._sample or (is_unread and not self._unread):
            self._sample = f"{place}: {error}: {printable(line[:200].decode('utf-8', 'replace').rstrip(), 150)}"
        self._unread += is_unread

    def _check(self, lines: int) -> None:
        """Raise `Failure` when more than 1% of the lines of a file are in no known format: the others are no sample."""
        if self._unread * 100 > lines:
            start = f"{self._unread:,} of {lines:,} lines of a file cannot be read, more than 1%"
            raise Failure(f"{start}. The first is {self._sample}. {_FORMATS}")

    def requests(self, action: str) -> Iterator[LogEntry]:
        """Yield the requests by time. ``action`` is the text of the bar. At one time, the first file comes first."""
        order = "number" if self._is_sorted else "time, number"
        rows = self.db.execute(f"SELECT data FROM request ORDER BY {order}")  # noqa: S608
        decode = msgspec.msgpack.Decoder(LogEntry, ext_hook=lambda _code, _data: INVALID).decode
        with progress(action, self.count, *_COLUMNS, requests=0) as update:
            for done, (data,) in enumerate(rows):
                if done % _AT_ONCE == 0:
                    update(requests=done, completed=done)
                yield decode(data)

    @property
    def formats(self) -> dict[str, int]:
        """The formats that were found, and the number of their lines; the most frequent first."""
        return dict(self._formats.most_common())

    def lines_json(self) -> dict[str, Any]:
        """Return the number of lines, those of each format, and the invalid ones with the first of them."""
        return {
            "formats": self.formats,
            "lines": self._lines,
            "invalid": self._invalid,
            "first_invalid": self._sample or None,
        }


def _name_of(path: str) -> str:
    return "<stdin>" if path == "-" else path


def format_text(formats: Mapping[str, int]) -> str:
    """Return the formats of a log for its reader, with the number of lines where there are several."""
    if len(formats) == 1:
        return f"format: {next(iter(formats))}"
    return "formats: " + ", ".join(f"{name} ({count_text(lines, 'line')})" for name, lines in formats.items())
