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
from .access_log import LONGEST_LINE, HeaderLineError, InvalidLineError, LogEntry, NoRequestError
from .log_formats import NAMES_OF_FORMATS, LineParser
from .output import Failure, count_text, note, printable, progress

_AT_ONCE: Final = 1_000
"""The requests between two updates of a bar."""
_COLUMNS: Final = (TaskProgressColumn(), TextColumn("{task.fields[requests]:,} requests"), TimeRemainingColumn())
_CACHE: Final = 50_000
"""The memory of the database in KiB. The rest of it is on disk."""
_READ: Final = LONGEST_LINE + 2  # with the end of the line
_EXAMPLES: Final = 5
_FORMATS: Final = (
    'Expected the common or combined format of Apache and nginx: CLIENT - USER [TIME] "REQUEST" STATUS SIZE. A host'
    " name, a time, or a prefix of syslog or Kubernetes may precede it. Or expected another format of --format, or JSON"
    " lines with the names of nginx, Caddy, Traefik or Envoy. With docker compose logs, add --no-log-prefix"
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


class LogFile:
    """The lines of one file: how many it has, in which formats, and those that are no request."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "<stdin>" if path == "-" else path
        self.lines = self.invalid = self._blank = self._unread = 0
        self.formats = Counter[str]()
        self.examples: list[dict[str, int | str]] = []
        self._first_unread = ""

    def read(self, file: IO[bytes], parse: Callable[[bytes], LogEntry]) -> Iterator[LogEntry]:
        """Yield the requests of the file."""
        for line in self._lines(file):
            self.lines += 1
            try:
                entry = parse(line)
            except InvalidLineError as error:
                self._add_invalid(line, error)
            else:
                self.formats[entry.format] += 1
                yield entry

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield the start of each line of a file, which may be compressed."""
        buffered = io.BufferedReader(cast(io.RawIOBase, file))
        module = _module_of(buffered.peek(6))
        unpacked = io.BufferedReader(module.open(buffered)) if module else buffered
        try:
            while line := unpacked.readline(_READ):
                yield line
                while len(line) > LONGEST_LINE and not line.endswith(b"\n"):  # skip the rest of the line
                    line = unpacked.readline(_READ)
        except Exception as error:
            if not module:
                raise
            raise Failure(f"{self.name}: cannot read the compressed file to its end: {error}") from None
        finally:
            buffered.detach()  # or it would close the file of the caller

    def _add_invalid(self, line: bytes, error: InvalidLineError) -> None:
        if isinstance(error, HeaderLineError) or not line.strip():
            self._blank += 1
            return
        self.invalid += 1
        text = line[:200].decode("utf-8", "replace").rstrip()
        if not isinstance(error, NoRequestError):
            self._first_unread = self._first_unread or f"line {self.lines}: {error}: {printable(text, 150)}"
            self._unread += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append({"number": self.lines, "reason": str(error), "text": text})

    def show_invalid(self, start: str) -> None:
        """Print the number of invalid lines, with examples."""
        if self.invalid:
            note(f"{start}{self.invalid:,} of {self.lines:,} lines cannot be parsed. The first of them:")
        for line in self.examples:
            note(f"  line {line['number']}: {line['reason']}: {printable(str(line['text']), 100)}")

    def check(self) -> None:
        """Raise `Failure` when more than 1% of the lines are in no known format: the other lines are then no sample."""
        lines = self.lines - self._blank
        if self._unread * 100 > lines:
            raise Failure(
                f"{self.name}: {self._unread:,} of {lines:,} lines cannot be read, more than 1%."
                f" The first is {self._first_unread}. {_FORMATS}"
            )


class RequestLog:
    """The requests of access logs in a temporary database, which SQLite deletes. The logs are read once.

    The database has about the size of the logs, most of it on disk.

    Args:
        paths: The files; "-" is stdin.
        parser: Parses a line.

    Raises:
        Failure: A file is not understood, or no file has a request.
    """

    def __init__(self, paths: Sequence[str], parser: LineParser) -> None:
        self._parser = parser
        self.files = [LogFile(path) for path in paths]
        self.db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        finalize(self, self.db.close)
        for pragma in ("journal_mode = OFF", f"cache_size = -{_CACHE}", "temp_store = FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("CREATE TABLE request (number INTEGER PRIMARY KEY, time, data)")
        self.db.execute("BEGIN")
        self._is_sorted = True
        self.db.executemany("INSERT INTO request (time, data) VALUES (?, ?)", self._rows())
        found = self.db.execute("SELECT count(*), min(time), max(time) FROM request").fetchone()
        self.count, self.first, self.last = found
        self._finish()

    def _rows(self) -> Iterator[tuple[float, bytes]]:
        """Yield the time and the data of each request, with a bar by the bytes of files. A pipe has no size."""
        sizes = [Path(file.path).stat().st_size if Path(file.path).is_file() else 0 for file in self.files]
        encode = msgspec.msgpack.Encoder(enc_hook=_encode_invalid).encode
        before, count = 0.0, 0
        with progress("reading", sum(sizes) if all(sizes) else None, *_COLUMNS, requests=0) as update:
            for number, log in enumerate(self.files):
                with click.open_file(log.path, "rb") as file:
                    for entry in log.read(file, self._parser):
                        self._is_sorted = self._is_sorted and before <= entry.time
                        before, count = entry.time, count + 1
                        if count % _AT_ONCE == 0:
                            position = file.tell() if sizes[number] else 0
                            update(requests=count, completed=sum(sizes[:number]) + position)
                        yield entry.time, encode(entry)

    def _finish(self) -> None:
        """Print the invalid lines of each file, and check them."""
        for file in self.files:
            file.show_invalid(f"{file.path}: " if len(self.files) > 1 else "")
            if self.count and not file.formats:
                note(f"{file.path}: contains no request")
        for file in self.files:
            file.check()
        if not self.count:
            raise Failure(f"{', '.join(file.name for file in self.files)}: contains no request")

    def requests(self, action: str) -> Iterator[LogEntry]:
        """Yield the requests by time. ``action`` is the text of the bar. At one time, the first file comes first."""
        order = "number" if self._is_sorted else "time, number"
        rows = self.db.execute(f"SELECT data FROM request ORDER BY {order}")  # noqa: S608
        decode = msgspec.msgpack.Decoder(LogEntry, ext_hook=_decode_invalid).decode
        with progress(action, self.count, *_COLUMNS, requests=0) as update:
            for done, (data,) in enumerate(rows):
                if done % _AT_ONCE == 0:
                    update(requests=done, completed=done)
                yield decode(data)

    @property
    def formats(self) -> dict[str, int]:
        """The formats that were found, and the number of their lines; the most frequent first."""
        return dict(sum((file.formats for file in self.files), Counter[str]()).most_common())

    def lines_json(self) -> dict[str, Any]:
        """Return the number of lines, those of each format, and the invalid ones with the first of each file."""
        return {
            "formats": self.formats,
            "lines": sum(file.lines for file in self.files),
            "invalid": sum(file.invalid for file in self.files),
            "invalid_examples": [{"file": file.path, **each} for file in self.files for each in file.examples],
        }


def _encode_invalid(_: object) -> msgspec.msgpack.Ext:
    """Encode a value that is no JSON: that of an invalid feature."""
    return msgspec.msgpack.Ext(0, b"")


def _decode_invalid(_code: int, _data: memoryview) -> object:
    return INVALID


def format_text(formats: Mapping[str, int]) -> str:
    """Return the formats of a log for its reader, with the number of lines where there are several."""
    if len(formats) == 1:
        return f"format: {next(iter(formats))}"
    return "formats: " + ", ".join(f"{name} ({count_text(lines, 'line')})" for name, lines in formats.items())
