"""Several access logs are read as one, by time, with one of them open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from click import open_file
from command_line import SITE, Files, line, run
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.cli import logs
from ratelimit_mw.cli.access_log import LogEntry
from ratelimit_mw.cli.log_formats import LineParser
from ratelimit_mw.cli.logs import size_of
from ratelimit_mw.cli.replay import request_log
from ratelimit_mw.cli.replay.request_log import RequestLog

Write = Callable[..., Path]


@pytest.fixture
def log(tmp_path: Path) -> Write:
    """Writes a log and returns its path."""
    return Files(tmp_path).log


def entries(*paths: Path) -> list[LogEntry]:
    log = RequestLog([str(path) for path in paths], LineParser({}, ()))
    return [entry for _, entry in log.requests("replaying")]


def times(*paths: Path) -> list[float]:
    return [entry.time for entry in entries(*paths)]


def test_files_in_any_order(log: Write) -> None:
    """Rotated files, plain and gzip, in any order on the command line."""
    old = log(gzip.compress("".join(line(at=i) for i in range(50)).encode()), "access.log.2.gz")
    middle, new = log([line(at=50 + i) for i in range(50)], "b"), log([line(at=100 + i) for i in range(50)], "c")
    assert times(new, old, middle) == times(old, middle, new) == [*range(1_500_000_000, 1_500_000_150)]


def test_files_of_several_servers(log: Write) -> None:
    """Files that overlap are merged. The order of the arguments changes nothing, even within one second."""
    one = log([line("192.0.2.1", at=i) for i in (0, 1, 1, 5)], "one")
    two = log([line("192.0.2.2", at=i) for i in (0, 1, 3, 9)], "two")
    for paths in ([one, two], [two, one]):
        found = entries(*paths)
        merged = [(entry.client[-1] if entry.client else "", int(entry.time) - 1_500_000_000) for entry in found]
        assert merged == [("1", 0), ("2", 0), ("1", 1), ("1", 1), ("2", 1), ("2", 3), ("1", 5), ("2", 9)]


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4))
def test_merge_of_any_files(tmp_path_factory: pytest.TempPathFactory, found: list[list[int]]) -> None:
    """Every request comes out once, by time, whatever the order within the files."""
    files = Files(tmp_path_factory.mktemp("logs"))
    found = [[0], *found]  # logs without a request are an error
    paths = [files.log([line(at=at) for at in each], str(i)) for i, each in enumerate(found)]
    assert times(*paths) == sorted(1_500_000_000 + at for each in found for at in each)


def test_one_file_is_open(log: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is closed before the next one is opened."""
    paths, opened, real = (
        [log([line(at=i), line(at=i + 1)], f"log-{i}") for i in range(20)],
        list[IO[bytes]](),
        open_file,
    )

    def open_and_count(path: str, mode: str) -> IO[bytes]:
        assert all(file.closed for file in opened)
        opened.append(real(path, mode))
        return opened[-1]

    monkeypatch.setattr("click.open_file", open_and_count)
    assert len(times(*paths)) == 40
    assert len(opened) == 20


def test_invalid_lines_have_their_file(log: Write, tmp_path: Path) -> None:
    """The numbers are those of each file, and a file without a request is named."""
    rules = Files(tmp_path).rules(SITE)
    fine, bad = log([line(), "x\n", line() * 98], "fine"), log(["\n", line(method="\\x16")], "bad")
    result = run("replay", rules, fine, bad, "--json")
    report = json.loads(result.stdout)
    assert [(each["file"], each["number"]) for each in report["invalid_examples"]] == [(str(fine), 2), (str(bad), 2)]
    assert (report["lines"], report["invalid"], report["requests"]) == (102, 2, 99)
    notes = result.stderr.splitlines()
    assert notes[:3] == [
        f"{fine}: 1 of 100 lines cannot be parsed. The first of them:",
        "  line 2: not in the common or combined format: x",
        f"{bad}: 1 of 2 lines cannot be parsed. The first of them:",
    ]
    assert notes[3].startswith("  line 2: not an HTTP request: ")
    assert notes[4:] == [f"{bad}: contains no request"]


def test_no_request_in_any_file(log: Write, tmp_path: Path) -> None:
    """The message names all files."""
    result = run("replay", Files(tmp_path).rules(SITE), log([], "a"), log([], "b"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {tmp_path}/a, {tmp_path}/b: contains no request\n"


def test_a_file_twice(log: Write, tmp_path: Path) -> None:
    """A file that is given twice, even by another name, is a mistake."""
    path = log([line()])
    (tmp_path / "link").symlink_to(path)
    result = run("replay", Files(tmp_path).rules(SITE), path, tmp_path / "link")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is given twice, so its requests would count twice" in result.stderr


def test_a_pipe_has_no_size(log: Write) -> None:
    paths = [str(log([line(at=i) for i in range(1000)], name)) for name in "ab"]
    assert size_of(paths) == sum(Path(path).stat().st_size for path in paths)
    assert size_of([*paths, "-"]) is None


def test_the_bars_of_a_terminal_reach_the_end(log: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is in lines and bytes of all files, and each pass over the requests is in requests."""
    shown: dict[str, tuple[int, int]] = {}

    @contextmanager
    def recorded(action: str, total: int | None, *_: Any, **fields: Any) -> Iterator[Callable[..., None]]:
        yield lambda lines, completed: shown.update({action: (lines, completed)})

    for module in (logs, request_log):
        monkeypatch.setattr(module, "progress", recorded)
    paths = [log([line(at=i) for i in range(1000)], name) for name in "ab"]
    assert len(times(*paths)) == 2000
    assert shown == {"reading": (2000, size_of(list(map(str, paths)))), "replaying": (1000, 1000)}


def test_stdin_among_files(log: Write, tmp_path: Path) -> None:
    """stdin is read along with the files."""
    result = run("replay", Files(tmp_path).rules(SITE), log([line(at=1)] * 2), "-", "--json", input=line() * 2)
    report = json.loads(result.stdout)
    assert (report["requests"], report["rejected"]) == (4, 1)
