"""The access logs of a command: its options, their requests by time, and notes about what a log does not contain."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import click
import msgspec
from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

from ...keys.features import INVALID
from ...rules.describe import describe_amendments
from ...stores import redacted_url
from ..access_log import LogEntry, LogReader
from ..json_lines import LineParser, check_field
from ..output import Failure, count_text, note, parsed, progress
from ..source import Source
from .simulation import attributes_of, is_logged

_COLUMNS: Final = (TaskProgressColumn(), TextColumn("{task.fields[lines]:,} {task.fields[of]}"), TimeRemainingColumn())
_CACHE: Final = 50_000
"""The memory of the database in KiB. The rest of it is on disk."""
_AT_ONCE: Final = 1_000
"""The requests of one write, and between two updates of a bar."""


def _check_fields(texts: tuple[str, ...]) -> dict[str, str]:
    return dict(map(check_field, texts))


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


field_option = click.option("--field", "fields", metavar="NAME=FIELD", multiple=True, callback=parsed(_check_fields),
                            help="The field of JSON lines for a part of the request, or for a feature: time=...,"
                                 " ip=..., user=account.id, plan=account.plan. Repeat it for several"
                                 " fields.")  # fmt: skip
limit_option = click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True,
                            help="Maximum number of clients to show.")  # fmt: skip


def size_of(paths: Sequence[str]) -> int | None:
    """Return the bytes of all files; None when one of them is a pipe, which can be read only once."""
    is_file = [path != "-" and Path(path).is_file() for path in paths]
    return sum(Path(path).stat().st_size for path in paths) if all(is_file) else None


class AccessLogs:
    """Iterates over the requests of access logs, file by file, with a bar on a terminal.

    Args:
        paths: The files; "-" is stdin.
        parse: Parses a line.
        action: The text of the bar.
    """

    def __init__(self, paths: Sequence[str], parse: Callable[[bytes], LogEntry], action: str = "reading") -> None:
        self.paths = paths
        self._parse = parse
        self._action = action
        self._readers: dict[str, LogReader] = {}

    def __iter__(self) -> Iterator[LogEntry]:
        for _, entry in self.by_file():
            yield entry

    def by_file(self) -> Iterator[tuple[int, LogEntry]]:
        """Yield the number of the file of each request, and the request."""
        lines = position = 0
        with progress(self._action, size_of(self.paths) or None, *_COLUMNS, lines=0, of="lines") as update:
            for number, path in enumerate(self.paths):

                def show(own_lines: int, own_position: int) -> None:
                    update(lines=lines + own_lines, completed=position + own_position)  # noqa: B023 - called at once

                with click.open_file(path, "rb") as file:
                    reader = self._readers[path] = LogReader(file, show, self._parse)
                    for entry in reader:
                        yield number, entry
                    lines += reader.lines
                    position += file.tell() if file.seekable() else 0

    def as_json(self) -> dict[str, Any]:
        """Return the number of lines, those of each format, and the invalid ones with the first of each file."""
        readers = self._readers.values()
        return {
            "formats": self.formats,
            "lines": sum(reader.lines for reader in readers),
            "invalid": sum(reader.invalid for reader in readers),
            "invalid_examples": [
                {"file": path, **each} for path, reader in self._readers.items() for each in reader.examples
            ],
        }

    @property
    def formats(self) -> dict[str, int]:
        """The formats that were found, and the number of their lines; the most frequent first."""
        formats = Counter[str]()
        for reader in self._readers.values():
            formats.update(reader.formats)
        return dict(formats.most_common())

    def finish(self, requests: int) -> None:
        """Print the invalid lines of each file, and check them."""
        for path, reader in self._readers.items():
            reader.show_invalid(f"{path}: " if len(self.paths) > 1 else "")
            if requests and not reader.has_requests:
                note(f"{path}: contains no request")
        self.check(requests)

    def check(self, requests: int) -> None:
        """Raise `Failure` for a file that is not understood, and when the files have no request."""
        for path, reader in self._readers.items():
            reader.check_read(_name(path))
        if not requests:
            raise Failure(f"{', '.join(map(_name, self.paths))}: contains no request")


class RequestLog:
    """The requests of access logs in a temporary database, which SQLite deletes. The logs are read once.

    The database has about the size of the logs, most of it on disk.
    """

    def __init__(self, paths: Sequence[str], parser: LineParser) -> None:
        self.logs = AccessLogs(paths, parser)
        self.db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        finalize(self, self.db.close)
        for pragma in ("journal_mode = OFF", f"cache_size = -{_CACHE}", "temp_store = FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("CREATE TABLE request (number INTEGER PRIMARY KEY, file, time, data)")
        self.db.execute("BEGIN")
        self._starts: dict[int, float] = {}
        self._is_sorted = True
        rows = self._rows()
        while some := list(islice(rows, _AT_ONCE)):
            self.db.executemany("INSERT INTO request (file, time, data) VALUES (?, ?, ?)", some)
        found = self.db.execute("SELECT count(*), min(time), max(time) FROM request").fetchone()
        self.count, self.first, self.last = found
        self.logs.finish(self.count)

    def _rows(self) -> Iterator[tuple[int, float, bytes]]:
        before, encode = 0.0, msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode  # an invalid feature is null
        for file, entry in self.logs.by_file():
            time = entry.time
            self._is_sorted = self._is_sorted and before <= time
            before = time
            if time < self._starts.get(file, inf):
                self._starts[file] = time
            yield file, time, encode(entry)

    def requests(self, action: str) -> Iterator[tuple[int, LogEntry]]:
        """Yield the requests by time, each with its number. ``action`` is the text of the bar.

        At one time, a file that starts earlier comes first, so the order of the files changes nothing.
        """
        by_start = sorted(self._starts, key=lambda file: (self._starts[file], self.logs.paths[file]))
        self.db.create_function("place", 1, by_start.index, deterministic=True)
        order = "number" if self._is_sorted else "time, place(file), number" if by_start[1:] else "time, number"
        rows = self.db.execute(f"SELECT number, data FROM request ORDER BY {order}")  # noqa: S608
        decode = msgspec.msgpack.Decoder(LogEntry).decode
        with progress(action, self.count, *_COLUMNS, lines=0, of="requests") as update:
            for done, (number, data) in enumerate(rows):
                if done % _AT_ONCE == 0:
                    update(lines=done, completed=done)
                entry = decode(data)
                yield number, entry if not entry.features else entry._replace(features=_valid(entry.features))


def _valid(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features that were encoded. One that is missing is left out, so null is an invalid one."""
    return {name: INVALID if value is None else value for name, value in features.items()}


def format_text(formats: Mapping[str, int]) -> str:
    """Return the formats of a log for its reader, with the number of lines where there are several."""
    if len(formats) == 1:
        return f"format: {next(iter(formats))}"
    return "formats: " + ", ".join(f"{name} ({count_text(lines, 'line')})" for name, lines in formats.items())


def show_log(period: str, counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the requests of a log are: their times, formats and clients."""
    yield period
    yield format_text(counts["formats"])
    yield f"{count_text(counts['requests'], 'request')} from {count_text(counts['clients'], 'client')}"


def _name(path: str) -> str:
    return "<stdin>" if path == "-" else path


def notes_on_replay(source: Source) -> Iterator[str]:
    """Yield how a replay differs from the application."""
    settings = source.settings
    scheme = redacted_url(settings.store).partition(":")[0]
    if scheme != "memory":
        yield f"counting in memory, not in {scheme}"
    yield from describe_amendments(settings.amendments)
    if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(settings.rules) if rule.is_marked]:
        yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
    if slots := [
        rule.name for rule in source.rules.rules if any(limit.quota.concurrent for limit in rule.all_limits())
    ]:
        yield f"requests end at once in the replay, so concurrency limits reject none for {', '.join(slots)}"


def notes_on_features(source: Source, parser: LineParser) -> Iterator[str]:
    """Yield which features of the rules the logs did not contain."""
    attributes = attributes_of(source.rules.rules)
    for feature, rules in source.rules_by_feature().items():
        for name in dict.fromkeys(attributes.get(feature, [feature])):
            if name == "endpoint" and name not in parser.found:
                yield f"the log does not contain routes, so all paths of a rule are one endpoint for {', '.join(rules)}"
            elif not is_logged(name) and name not in parser.found:
                yield f"the log does not contain {name}: missing in every request for {', '.join(rules)}"
