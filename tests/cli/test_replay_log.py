"""``ratelimit-mw replay`` reads logs in any order, with invalid lines, compressed, and from pipes."""

import bz2
import gzip
import json
import lzma
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, SITE, START, Files, Write, line, replayed, request_log, run
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw.cli.access_log import MAX_LINE, LogEntry


def test_requests_come_by_time(rules: Write, log: Write) -> None:
    """Those of one second keep the order of their lines. A line with a wrong date in the far future comes last."""
    path = log([line(f"192.0.2.{i}", at=at) for i, at in enumerate([3, 10**9, 2, 5, 2, 2])])
    assert [entry.client for entry in entries(path)] == [f"192.0.2.{i}" for i in (2, 4, 5, 0, 3, 1)]
    steady, ordered = {"name": "steady", "limits": "1/second", "algorithm": "gcra"}, [line(at=i) for i in range(60)]
    assert replayed(rules(steady), log([*ordered[31:], *ordered[:31]]))["rejected"] == 0


def entries(*paths: Path) -> list[LogEntry]:
    return list(request_log(*paths).requests("replaying"))


BAD = [
    b"\x1b[31mred\x07\xff\xfe\n",
    line().replace("14/Jul", "31/Jun").encode(),
    line(method="\\x16\\x03\\x01").encode(),
    b'192.0.2.1 - - [14/Jul/2017:02:40:00 +0000] "-" 408 0 "-" "-"\n',
    b"A" * (3 * MAX_LINE) + b"\n",
    b"B" * (MAX_LINE + 1) + b"\n",
    b"\x00\x01",
]


def test_invalid_lines_are_counted_and_shown(rules: Write, log: Write, tmp_path: Path) -> None:
    """The first line in no known format is shown with its number and reason."""
    first = line(method="\\x16").encode().strip()
    content = b"\n".join([first, b"", *[bad.strip(b"\n") for bad in BAD], line().encode() * 500])
    result = run("replay", rules(SITE), log(content), "--json")
    report = json.loads(result.stdout)
    assert (report["requests"], report["lines"], report["invalid"]) == (500, 509, 8)
    reason = "line 3: not in the common or combined format: \\x1b[31mred\\x07\ufffd\ufffd"
    assert report["first_invalid"] == f"{tmp_path}/access.log, {reason}"
    assert result.stderr == f"8 of 508 lines are no requests, such as {tmp_path}/access.log, {reason}\n"


@each(
    ("content", "problem"),
    [
        (b"", "contains no request\n"),
        (b"\n\n", "contains no request\n"),
        (line(method="\\x16").encode(), "contains no request\n"),
        (random.Random(1).randbytes(5000).replace(b"\x1f\x8b", b""), "lines of a file cannot be read, more than 1%"),
        (b"\x7fELF" + b"\x00" * 999, "1 of 1 lines of a file cannot be read, more than 1%"),
    ],
)
def test_logs_without_requests(rules: Write, log: Write, content: bytes, problem: str) -> None:
    """An empty log, or a file that is not a log, gives exit code 1 and a message."""
    result = run("replay", rules(SITE), log(content))
    assert (result.exit_code, result.stdout) == (1, "")
    assert problem in result.stderr


def test_a_log_that_is_not_understood(rules: Write, log: Write, tmp_path: Path) -> None:
    """With more than 1% of lines in no known format, no command shows a result: the error has one, and the formats."""
    old, new = rules(SITE), tmp_path / "new.json"
    new.write_text(old.read_text())
    fine = log([line(at=i) for i in range(99)] + ["x\n", "\n", line(method="\\x16")], "fine.log")
    assert replayed(old, fine)["invalid"] == 2
    bad = log([line(at=i) for i in range(98)] + ["May 17 x\n"], "bad.log")
    url = f"sqlite:///{tmp_path}/log.db"
    for command in (
        ("replay", old, bad),
        ("replay", old, bad, "--suggest", "1%"),
        ("diff", old, new, fine, bad),
        ("traffic", "import", url, fine, bad),
    ):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"1 of 99 lines of a file cannot be read, more than 1%. The first is {bad}, line 99: " in result.stderr
        assert "May 17 x. Expected a format of --format" in result.stderr
        assert "JSON lines" in result.stderr
    assert not (tmp_path / "log.db").exists()


@each(
    ("peer", "header", "client"),
    [
        ("10.0.0.5", "203.0.113.1", "203.0.113.1"),
        ("10.0.0.5", "198.51.100.9, 203.0.113.1, 10.0.0.7", "203.0.113.1"),
        ("10.0.0.5", "203.0.113.1, junk", "10.0.0.5"),
        ("10.0.0.5", "10.0.0.8", "10.0.0.5"),
        ("10.0.0.5", "::ffff:203.0.113.1", "203.0.113.1"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("198.51.100.1", "203.0.113.1", "198.51.100.1"),
        ("unix:", "203.0.113.1", "unknown"),
    ],
)
def test_clients_behind_proxies(rules: Write, log: Write, peer: str, header: str, client: str) -> None:
    """The client of a line is the one that the middleware finds behind the trusted proxies."""
    settings = rules(SITE, trusted_proxies=PROXIES)
    for text in (f'{line(peer).rstrip()} "{header}"\n', record(ip=peer, x_forwarded_for=header)):
        assert rejected_client(settings, log([text] * 4)) == client


PROXIES = ["10.0.0.0/8"]


def record(**fields: Any) -> str:
    """Return a JSON line of a request."""
    return json.dumps({"time": START, "method": "GET", "path": "/", "status": 200, **fields}) + "\n"


@each(
    ("options", "fields", "client"),
    [
        *(
            ({"trusted_proxies": trusted}, {"remote_addr": addresses}, client)
            for trusted, addresses, client in (
                (PROXIES, "198.51.100.9, 203.0.113.1, 10.0.0.7", "203.0.113.1"),
                (PROXIES, ["198.51.100.9, 203.0.113.1", "10.0.0.7"], "203.0.113.1"),
                (PROXIES, "203.0.113.1", "203.0.113.1"),
                (PROXIES, "junk, 10.0.0.7", "10.0.0.7"),
                (PROXIES, "10.0.0.8, 10.0.0.7", "10.0.0.7"),
                ([], "203.0.113.1, 198.51.100.1", "198.51.100.1"),
            )
        ),
        *(
            (
                {"trusted_proxies": PROXIES, "forwarded_header": "forwarded"},
                {"ip": "10.0.0.5", "xff": "192.0.2.9", "http_forwarded": header},
                client,
            )
            for header, client in (("for=203.0.113.1", "203.0.113.1"), ("for=x y", "(invalid)"), (None, "10.0.0.5"))
        ),
    ],
)
def test_a_list_of_addresses_is_walked_as_live(
    rules: Write, log: Write, options: dict[str, Any], fields: dict[str, Any], client: str
) -> None:
    """A list of addresses is walked from the right as live, and nothing that a client sent is the client.

    The header is that of the settings; a malformed one is one shared client, as in the middleware.
    """
    assert rejected_client(rules(SITE, **options), log([record(**fields)] * 4)) == client


def rejected_client(settings: Path, access_log: Path) -> str:
    """Return the one client that is rejected."""
    (row,) = replayed(settings, access_log)["clients_rejected_most"]
    client: str = row["client"]
    return client


zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
PACKED = [gzip.compress, bz2.compress, lzma.compress, zstd.compress]


def twice(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that packs a file in two parts, as logs that are appended to each other."""
    return lambda lines: pack(lines[:99]) + pack(lines[99:])


@each("pack", [bytes, *PACKED, *map(twice, PACKED)])
@each("name", ["access.log", "access.log.gz"])
def test_a_log_may_be_compressed(rules: Write, log: Write, pack: Callable[[bytes], bytes], name: str) -> None:
    """The first bytes decide, and not the file name. "-" reads the log from stdin."""
    packed = pack("".join(line(at=i) for i in range(50)).encode())
    settings, path = rules(SITE), log(packed, name)
    assert replayed(settings, path)["requests"] == 50
    assert json.loads(run("replay", settings, "-", "--json", input=packed).stdout)["requests"] == 50


def damaged() -> Iterator[bytes]:
    """Return files that are cut, have a wrong sum, or only begin as compressed ones do."""
    whole, *others = (pack(b"".join(line(at=i).encode() for i in range(2000))) for pack in PACKED)
    yield from (whole[:-100], whole[:20], b"\x1f\x8b", whole[:-8] + struct.pack("<LL", 0, 0), whole + b"trailing")
    yield from (other[:-9] for other in others)
    for start in (b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"BZh9", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"):
        yield start + b"not compressed"


@each("content", damaged())
def test_damaged_compression_gives_no_report(rules: Write, log: Write, content: bytes) -> None:
    """The exit code is 1, and the error names the file, whatever exception the library has. There is no report."""
    result = run("replay", rules(SITE), log(content))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "access.log: cannot be read to its end: " in result.stderr


def test_zst_without_its_package_has_a_hint(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run("replay", rules(SITE), log(b"\x28\xb5\x2f\xfd\x00", "access.log.zst"))
    assert (result.exit_code, "zstdcat FILE | ratelimit-mw" in result.stderr) == (1, True)


@pytest.mark.slow
def test_a_log_may_come_from_a_pipe(rules: Write) -> None:
    """A pipe may be stdin or a file name."""
    content = gzip.compress("".join([line()] * 1200).encode())
    for name in ("-", "/dev/stdin"):
        args = [str(PROGRAM), "replay", str(rules(SITE)), name, "--json"]
        done = subprocess.run(args, input=content, capture_output=True, check=False, timeout=180)
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["requests"] == 1200


@pytest.mark.slow
def test_progress_bar_only_on_a_terminal(rules: Write, log: Write) -> None:
    """stderr is empty without a terminal, and stdout is the same."""
    args = [str(PROGRAM), "replay", str(rules(SITE)), str(log([line()] * 1200))]
    plain = subprocess.run(args, capture_output=True, check=True, timeout=180)
    assert plain.stderr == b""
    ours, theirs = os.openpty()
    shown = subprocess.run(args, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=180)
    os.close(theirs)
    bar = os.read(ours, 100_000)
    os.close(ours)
    assert b"replaying" in bar
    assert b"1,000 requests" in bar
    assert shown.stdout == plain.stdout


# -- several files ----------------------------------------------------------------------------------------------


def times(*paths: Path) -> list[float]:
    return [entry.time for entry in entries(*paths)]


def test_files_of_several_servers(log: Write) -> None:
    """Files that overlap are merged. Within one second, the first file comes first."""
    one = log([line("192.0.2.1", at=i) for i in (0, 1, 1, 5)], "one")
    two = log([line("192.0.2.2", at=i) for i in (0, 1, 3, 9)], "two")
    merged = [(entry.client[-1] if entry.client else "", int(entry.time) - START) for entry in entries(one, two)]
    assert merged == [("1", 0), ("2", 0), ("1", 1), ("1", 1), ("2", 1), ("2", 3), ("1", 5), ("2", 9)]


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4))
def test_merge_of_any_files(tmp_path_factory: pytest.TempPathFactory, found: list[list[int]]) -> None:
    """Every request comes out once, by time, whatever the order within the files."""
    files = Files(tmp_path_factory.mktemp("logs"))
    found = [[0], *found]  # logs without a request are an error
    paths = [files.log([line(at=at) for at in each], str(i)) for i, each in enumerate(found)]
    assert times(*paths) == sorted(1_500_000_000 + at for each in found for at in each)


def test_invalid_lines_have_their_file(log: Write, rules: Write) -> None:
    """The number of the line is that in its file."""
    bad, fine = log(["\n", line(method="\\x16")], "bad"), log([line(), "x\n", line() * 98], "fine")
    result = run("replay", rules(SITE), bad, fine, "--json")
    report = json.loads(result.stdout)
    assert (report["lines"], report["invalid"], report["requests"]) == (102, 2, 99)
    reason = "not in the common or combined format: x"
    assert result.stderr == f"2 of 101 lines are no requests, such as {fine}, line 2: {reason}\n"


def test_paths_that_are_no_logs(log: Write, rules: Write, tmp_path: Path) -> None:
    """A missing file, a folder, and a file that is given twice, even by another name, are misuse."""
    path, no_log = log([line()]), "Invalid value for 'ACCESS_LOG...'"
    (tmp_path / "link").symlink_to(path)
    for paths, exit_code, message in (
        ([tmp_path / "nothing.log"], 2, no_log),
        ([tmp_path], 2, no_log),
        ([path, tmp_path / "link"], 2, "is given twice, so its requests would count twice"),
        ([log([], "a"), log([], "b")], 1, f"Error: {tmp_path}/a, {tmp_path}/b: contains no request\n"),
    ):
        result = run("replay", rules(SITE), *paths)
        assert (result.exit_code, result.stdout, message in result.stderr) == (exit_code, "", True), result.stderr


def test_stdin_is_read_beside_files(log: Write, rules: Write) -> None:
    result = run("replay", rules(SITE), log([line(at=1)] * 2), "-", "--json", input=line() * 2)
    report = json.loads(result.stdout)
    assert (report["requests"], report["rejected"]) == (4, 1)
