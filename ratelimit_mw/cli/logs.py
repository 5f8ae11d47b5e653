"""The access logs of a command, plain or compressed: its options, the requests of all files, and the invalid lines."""

import bz2
import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, cast

import click
from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

from .access_log import LONGEST_LINE, InvalidLineError, LogEntry, NoRequestError
from .json_lines import check_field
from .log_formats import NAMES_OF_FORMATS, HeaderLineError
from .output import Failure, count_text, note, parsed, printable, progress

COLUMNS: Final = (TaskProgressColumn(), TextColumn("{task.fields[lines]:,} {task.fields[of]}"), TimeRemainingColumn())
"""The columns of a bar. ``of`` is what its ``lines`` are."""
_READ: Final = LONGEST_LINE + 2  # with the end of the line
_BETWEEN: Final = 500
"""The lines between two updates of a bar."""
_EXAMPLES: Final = 5
_FORMATS: Final = (
    'Expected the common or combined format of Apache and nginx: CLIENT - USER [TIME] "REQUEST" STATUS SIZE. A host'
    " name, a time, or a prefix of syslog or Kubernetes may precede it. Or expected another format of --format, or JSON"
    " lines: name their fields with --field. With docker compose logs, add --no-log-prefix"
)


def _zstd() -> Any:
    """Return the module of zstd: that of Python 3.14, or the package zstandard."""
    for name in ("compression.zstd", "zstandard"):
        with suppress(ImportError):
            return import_module(name)
    raise Failure("zst needs Python 3.14 or the package zstandard. Or run: zstdcat FILE | ratelimit-mw ... -")


def _is_damage(error: Exception) -> bool:
    """Return whether a compressed file has caused an error of reading it, and not the disk."""
    if isinstance(error, OSError):
        return error.errno is None
    return isinstance(error, (EOFError, lzma.LZMAError, zlib.error)) or type(error).__name__ == "ZstdError"


_OPENERS: Final[dict[bytes, Callable[[Any], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: _zstd().open(file),
}
"""How a compressed file is opened, by its first bytes."""


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


field_option = click.option("--field", "fields", metavar="NAME=FIELD", multiple=True,
                            callback=parsed(lambda texts: dict(map(check_field, texts))),
                            help="The field of JSON lines for a part of the request, or for a feature: time=...,"
                                 " ip=..., user=account.id, plan=account.plan. Repeat it for several"
                                 " fields.")  # fmt: skip

format_option = click.option("--format", "name", metavar="NAME", type=click.Choice(NAMES_OF_FORMATS),
                             help="The format of the logs. Default: that of each line. One of"
                                  f" {', '.join(NAMES_OF_FORMATS)}.")  # fmt: skip
"""The option of a command for the format of its logs."""


def size_of(paths: Sequence[str]) -> int | None:
    """Return the bytes of all files; None when one of them is a pipe, which can be read only once."""
    is_file = [path != "-" and Path(path).is_file() for path in paths]
    return sum(Path(path).stat().st_size for path in paths) if all(is_file) else None


def _position_in(file: IO[bytes]) -> int:
    """Return the bytes that were read of a file; 0 for a pipe."""
    return file.tell() if file.seekable() else 0


class LogFile:
    """Reads the requests of one file, and keeps its invalid lines. ``update`` gets the lines and bytes so far."""

    def __init__(
        self,
        path: str,
        parse: Callable[[bytes], LogEntry],
        update: Callable[[int, int], None] = lambda _lines, _bytes: None,
    ) -> None:
        self.path = path
        self.name = "<stdin>" if path == "-" else path
        self._parse = parse
        self._update = update
        self.lines = self.blank = self.invalid = self._unread = 0
        self.formats = Counter[str]()
        self.examples: list[dict[str, int | str]] = []
        self._first_unread = ""

    def read(self, file: IO[bytes]) -> Iterator[LogEntry]:
        buffered = io.BufferedReader(cast(io.RawIOBase, file))
        start = buffered.peek(6)
        opener = next((each for magic, each in _OPENERS.items() if start.startswith(magic)), None)
        try:
            yield from self._entries(file, buffered if opener is None else io.BufferedReader(opener(buffered)))
        except Exception as error:
            if opener is None or not _is_damage(error):
                raise
            raise Failure(f"{self.name}: cannot read the compressed file to its end: {error}") from None
        finally:
            buffered.detach()  # or it would close the file of the caller

    def _entries(self, file: IO[bytes], unpacked: io.BufferedIOBase) -> Iterator[LogEntry]:
        while line := unpacked.readline(_READ):
            self.lines += 1
            if self.lines % _BETWEEN == 0:
                self._update(self.lines, _position_in(file))
            try:
                entry = self._parse(line)
            except InvalidLineError as error:
                self._add_invalid(line, error)
            else:
                self.formats[entry.format] += 1
                yield entry
            while len(line) > LONGEST_LINE and not line.endswith(b"\n"):  # skip the rest of the line
                line = unpacked.readline(_READ)

    def _add_invalid(self, line: bytes, error: InvalidLineError) -> None:
        if isinstance(error, HeaderLineError) or not line.strip():
            self.blank += 1
            return
        self.invalid += 1
        text = line[:200].decode("utf-8", "replace").rstrip()
        if not isinstance(error, NoRequestError):
            self._unread += 1
            self._first_unread = self._first_unread or f"line {self.lines}: {error}: {printable(text, 150)}"
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
        lines = self.lines - self.blank
        if self._unread * 100 > lines:
            raise Failure(
                f"{self.name}: {self._unread:,} of {lines:,} lines cannot be read, more than 1%."
                f" The first is {self._first_unread}. {_FORMATS}"
            )


class AccessLogs:
    """Reads the requests of several files, one after the other, with a bar on a terminal.

    Args:
        paths: The files; "-" is stdin.
        parse: Parses a line.
        action: The text of the bar.
    """

    def __init__(self, paths: Sequence[str], parse: Callable[[bytes], LogEntry], action: str = "reading") -> None:
        self.paths = paths
        self._parse = parse
        self._action = action
        self._files: list[LogFile] = []

    def read(self) -> Iterator[tuple[int, LogEntry]]:
        """Yield the number of the file of each request, and the request."""
        lines = position = 0
        with progress(self._action, size_of(self.paths) or None, *COLUMNS, lines=0, of="lines") as update:
            for number, path in enumerate(self.paths):
                before = lines, position

                def show(own_lines: int, own_position: int) -> None:
                    nonlocal lines, position
                    lines, position = before[0] + own_lines, before[1] + own_position  # noqa: B023 - called at once
                    update(lines=lines, completed=position)

                log = LogFile(path, self._parse, show)
                self._files.append(log)
                with click.open_file(path, "rb") as file:
                    for entry in log.read(file):
                        yield number, entry
                    show(log.lines, _position_in(file))

    def as_json(self) -> dict[str, Any]:
        """Return the number of lines, those of each format, and the invalid ones with the first of each file."""
        return {
            "formats": self.formats,
            "lines": sum(file.lines for file in self._files),
            "invalid": sum(file.invalid for file in self._files),
            "invalid_examples": [{"file": file.path, **each} for file in self._files for each in file.examples],
        }

    @property
    def formats(self) -> dict[str, int]:
        """The formats that were found, and the number of their lines; the most frequent first."""
        return dict(sum((file.formats for file in self._files), Counter[str]()).most_common())

    def finish(self, requests: int) -> None:
        """Print the invalid lines of each file, and check them."""
        for file in self._files:
            file.show_invalid(f"{file.path}: " if len(self.paths) > 1 else "")
            if requests and not file.formats:
                note(f"{file.path}: contains no request")
        self.check(requests)

    def check(self, requests: int) -> None:
        """Raise `Failure` for a file that is not understood, and when the files have no request."""
        for file in self._files:
            file.check()
        if not requests:
            raise Failure(f"{', '.join(file.name for file in self._files)}: contains no request")


def format_text(formats: Mapping[str, int]) -> str:
    """Return the formats of a log for its reader, with the number of lines where there are several."""
    if len(formats) == 1:
        return f"format: {next(iter(formats))}"
    return "formats: " + ", ".join(f"{name} ({count_text(lines, 'line')})" for name, lines in formats.items())
