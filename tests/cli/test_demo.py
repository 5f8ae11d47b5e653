"""The demo as a user runs it: a real server, real traffic, a table that adds up, and no process left running."""

import gzip
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from servers import wait_for

from ratelimit_mw.cli.demo.traffic import TRAFFIC_KINDS, make_traffic
from ratelimit_mw.cli.group import ratelimit_mw

PROGRAM = "from ratelimit_mw.cli import main; main()"
DEMO = [sys.executable, "-c", PROGRAM, "demo"]
REQUESTS = 900
TIMEOUT = 900  # seconds, far more than any run takes on a busy machine
_, _, PEOPLE, ONE_IP, ONE_ACCOUNT = TRAFFIC_KINDS
TABLE = "By kind of client"

slow, THOROUGH = pytest.mark.slow, pytest.mark.thorough


def run(*options: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*DEMO, *options], input=stdin, capture_output=True, timeout=TIMEOUT, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def demo_run() -> subprocess.CompletedProcess[str]:
    """One run with three seconds of traffic, for the tests that check its output."""
    return run("--requests", str(REQUESTS), "--seed", "3")


def table(output: str) -> dict[str, list[str]]:
    """The rows of the table, by their first cell."""
    lines = iter(output.partition(f"{TABLE}\n")[2].splitlines())
    assert next(lines)
    assert set(next(lines)) == {"─"}
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.strip():
            break
        first, *cells = re.split(r"\s{2,}", line.rstrip())
        rows[first] = cells
    return rows


def numbers(cells: list[str]) -> list[int]:
    """Clients, requests, allowed and rejected."""
    return [int(cell.replace(",", "")) for cell in cells[:4]]


def url_in(stderr: str) -> str:
    match = re.search(r"serving at (http://127\.0\.0\.1:\d+)", stderr)
    assert match, stderr
    return match[1]


def is_served(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


# -- output --------------------------------------------------------------------------------------------------


@slow
def test_demo_stops_its_server(demo_run: subprocess.CompletedProcess[str]) -> None:
    """The exit code is 0, and the port is closed."""
    assert demo_run.returncode == 0, demo_run.stderr
    assert not is_served(url_in(demo_run.stderr))


@slow
@pytest.mark.parametrize("title", ["settings", "application"])
def test_files_of_the_demo_are_shown(demo_run: subprocess.CompletedProcess[str], title: str) -> None:
    """The text of the file follows its path."""
    path = re.search(rf"^The {title}: (.+)$", demo_run.stdout, re.MULTILINE)
    assert path
    assert Path(path[1]).read_text().strip() in "\n".join(line.rstrip() for line in demo_run.stdout.splitlines())


@slow
def test_counts_add_up(demo_run: subprocess.CompletedProcess[str]) -> None:
    """Every request is allowed or rejected, in total and for each kind of client."""
    total = re.search(
        r"^900 requests from (\d+) clients in [\d.]+ s\n(\d+) allowed, (\d+) rejected$", demo_run.stdout, re.M
    )
    assert total
    rows = {kind: numbers(cells) for kind, cells in table(demo_run.stdout).items()}
    planned = make_traffic(3, REQUESTS)
    assert list(rows) == list(TRAFFIC_KINDS)
    for kind, (clients, requests, allowed, rejected) in rows.items():
        assert clients == len({request.client for request in planned if request.kind == kind})
        assert requests == sum(request.kind == kind for request in planned) == allowed + rejected
    assert [int(number) for number in total.groups()] == [
        len({request.client for request in planned}),
        sum(row[2] for row in rows.values()),
        sum(row[3] for row in rows.values()),
    ]


@slow
def test_attacks_are_rejected_and_people_are_not(demo_run: subprocess.CompletedProcess[str]) -> None:
    """Each attack is rejected by its rule. Every person logs in."""
    rows = table(demo_run.stdout)
    for attack, rule in ((ONE_IP, "login-address"), (ONE_ACCOUNT, "login-account")):
        _, requests, _, rejected = numbers(rows[attack])
        assert rejected > requests / 4
        assert rule in rows[attack][4]
    assert numbers(rows[PEOPLE])[3] == 0


@slow
def test_sample_is_a_rejection_that_keeps_its_promise(demo_run: subprocess.CompletedProcess[str]) -> None:
    """The request is allowed after the wait of Retry-After."""
    head, _, rest = demo_run.stdout.partition("\nHTTP/1.1 429 Too Many Requests\n")[2].partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines())
    body = rest.splitlines()[0]
    assert len(body) == int(headers["content-length"])
    assert "violated-policies" in body
    assert headers["content-type"] == "application/problem+json"
    retried = re.search(r"The same request after Retry-After \((\d+) s\): (\d+)", demo_run.stdout)
    assert retried
    assert retried[1] == headers["retry-after"]
    assert retried[2] in ("200", "401")


@slow
def test_suggested_commands_work(demo_run: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    """Each command under "Try next" runs, and the program exists under its printed path."""
    log = tmp_path / "access.log"
    log.write_bytes(line("192.0.2.1", "GET / HTTP/1.1"))
    suggested = re.findall(r"^  (\S*ratelimit-mw) (.+)$", demo_run.stdout, re.MULTILINE)
    assert all(shutil.which(program) for program, _ in suggested)
    assert [command.split()[0] for _, command in suggested] == ["check", "explain", "replay", "demo"]
    for _, command in suggested[:3]:
        words = [str(log) if word.endswith("access.log") else word for word in shlex.split(command)]
        result = CliRunner().invoke(ratelimit_mw, words)
        assert result.exit_code == 0, result.output
        assert "IP address is missing" not in result.output


@slow
def test_output_to_a_file_has_no_colours_and_no_bar(demo_run: subprocess.CompletedProcess[str]) -> None:
    """It is plain text."""
    assert "\x1b" not in demo_run.stdout + demo_run.stderr
    assert "sending" not in demo_run.stderr
    assert "\r" not in demo_run.stdout + demo_run.stderr


@slow
def test_terminal_has_a_progress_bar() -> None:
    """The bar shows how many requests were sent. The cursor is visible again afterwards."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        [*DEMO, "--requests", "100"], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as demo:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
    os.close(ours)
    assert demo.returncode == 0
    assert b"sending" in output
    assert b"100 of 100 requests" in output
    assert b"\x1b[?25h" in output


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # on Linux: the other side is closed
        return b""


# -- the end of a run ----------------------------------------------------------------------------------------


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that is sending requests, and the URL of its server."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
    with subprocess.Popen(
        [*DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        signal.signal(signal.SIGINT, before)
        assert demo.stderr is not None
        url = url_in(demo.stderr.readline())
        assert is_served(url)
        yield demo, url


@slow
def test_interrupt_stops_the_server() -> None:
    """Ctrl-C gives the exit code of shells, and no traceback."""
    with started() as (demo, url):
        demo.send_signal(signal.SIGINT)
        stdout, stderr = demo.communicate(timeout=TIMEOUT)
    assert demo.returncode == 130
    assert stderr == "interrupted; the server is stopped\n"
    assert TABLE not in stdout
    assert not is_served(url)


@slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_server_ends_with_a_killed_demo(signal_number: signal.Signals) -> None:
    """The server is a part of the same process."""
    with started() as (demo, url):
        demo.send_signal(signal_number)
        demo.communicate(timeout=TIMEOUT)
    # A connection to a server is closed when the server ends.
    host, port = url.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
            assert connection.recv(1) == b""
    except (ConnectionRefusedError, ConnectionResetError):
        pass
    wait_for(lambda: not is_served(url), "the port to be free")


@slow
def test_port_in_use() -> None:
    """A port in use gives exit code 1 and a message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--requests", "10", "--port", str(port))
    assert done.returncode == 1
    assert f"Error: cannot listen on 127.0.0.1:{port}: " in done.stderr
    assert TABLE not in done.stdout


@pytest.mark.parametrize("missing", ["httpx", "starlette", "uvicorn"])
def test_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, and the command that installs the extra."""
    monkeypatch.setitem(sys.modules, missing, None)
    result = CliRunner().invoke(ratelimit_mw, ["demo"])
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[demo]"' in result.stderr


# -- an access log -------------------------------------------------------------------------------------------


def line(client: str, request: str) -> bytes:
    return f'{client} - - [17/May/2015:10:05:03 +0000] "{request}" 200 12 "-" "agent"\n'.encode()


LOG = b"".join(
    [
        *(line("192.0.2.1", f"GET /busy/{i} HTTP/1.1") for i in range(120)),
        *(line(f"2001:db8:0:{i}::1", "GET /once?a=1&b=%20 HTTP/1.1") for i in range(5)),
        line("192.0.2.2", "POST /login HTTP/1.1"),
        line("192.0.2.2", "HEAD / HTTP/1.0"),
        line("host.example", "PROPFIND //elsewhere.example/a/../b HTTP/1.1"),
        line("192.0.2.9", "GET /\\x1b[31m\\xff HTTP/1.1"),
        line("-", "OPTIONS * HTTP/1.1"),
        line("192.0.2.3", "CONNECT elsewhere.example:443 HTTP/1.1"),
        b"not a line of a log\n",
    ]
)
SENT = 120 + 5 + 5


@slow
@pytest.mark.parametrize("form", [pytest.param("plain", marks=THOROUGH), pytest.param("gzip", marks=THOROUGH), "stdin"])
def test_whole_log_is_sent(form: str, tmp_path: Path) -> None:
    """Every request is sent from the IP address of its client. The busy client is rejected."""
    path = tmp_path / "access.log"
    path.write_bytes(gzip.compress(LOG) if form == "gzip" else LOG)
    done = run("--log", "-", stdin=LOG) if form == "stdin" else run("--log", str(path))
    assert done.returncode == 0, done.stderr
    assert "1 of 132 lines cannot be parsed" in done.stderr
    assert "without a response" not in done.stdout
    assert f"\n{SENT} requests from 10 clients in " in done.stdout
    rows = table(done.stdout)
    assert numbers(rows["1 request"]) == [8, 8, 8, 0]
    assert numbers(rows["2 to 9 requests"]) == [1, 2, 2, 0]
    clients, requests, allowed, rejected = numbers(rows["100 requests or more"])
    assert (clients, requests, allowed + rejected) == (1, 120, 120)
    assert 30 <= allowed < 120
    assert "\x1b" not in done.stdout + done.stderr


@slow
def test_requests_option_limits_a_log(tmp_path: Path) -> None:
    """The first requests are sent, with a note."""
    path = tmp_path / "access.log"
    path.write_bytes(LOG)
    done = run("--log", str(path), "--requests", "3")
    assert done.returncode == 0
    assert "sending the first 3 requests; change the number with --requests" in done.stderr
    assert "\n3 requests from 1 client in " in done.stdout
    assert "3 allowed, 0 rejected" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no request"),
        (gzip.compress(LOG)[:-20], "cannot read the compressed file to its end"),
    ],
    ids=["empty", "truncated"],
)
def test_unusable_log_starts_no_server(content: bytes, message: str, tmp_path: Path) -> None:
    """Exit code 1 and a message."""
    path = tmp_path / "access.log.gz"
    path.write_bytes(content)
    result = CliRunner().invoke(ratelimit_mw, ["demo", "--log", str(path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert "serving" not in result.stderr
