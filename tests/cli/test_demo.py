"""The demo, run as people run it: a real server, real traffic, a report that adds up, and nothing left running."""

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

from ratelimit_mw.cli import commands
from ratelimit_mw.cli.demo.traffic import KINDS, ONE_ACCOUNT, ONE_ADDRESS, SIGNING_IN, traffic

pytestmark = pytest.mark.slow

DEMO = [str(Path(sys.executable).with_name("ratelimit-mw")), "demo"]
REQUESTS = 900
WITHIN = 120  # seconds, far more than any run takes


def run(*options: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*DEMO, *options], input=stdin, capture_output=True, timeout=WITHIN, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def shown() -> subprocess.CompletedProcess[str]:
    """One run of three seconds' traffic, looked at by many tests."""
    return run("--requests", str(REQUESTS), "--seed", "3")


def table(report: str, title: str) -> dict[str, list[str]]:
    """The rows of a table in the report, by their first cell."""
    lines = iter(report.splitlines())
    assert title in lines, report
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
    return [int(cell.replace(",", "")) for cell in cells]


def address_in(stderr: str) -> str:
    found = re.search(r"serving at (http://127\.0\.0\.1:\d+)", stderr)
    assert found, stderr
    return found[1]


def is_served(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


# -- what it shows -------------------------------------------------------------------------------------------


def test_it_ends_well_and_leaves_nothing_behind(shown: subprocess.CompletedProcess[str]) -> None:
    """Exit code 0, and the server that it started is gone."""
    assert shown.returncode == 0, shown.stderr
    assert not is_served(address_in(shown.stderr))


def test_it_shows_the_settings_word_for_word(shown: subprocess.CompletedProcess[str]) -> None:
    """What the server runs with stands in the report as in its file, under a path that opens."""
    path = re.search(r"^The settings, (.+)$", shown.stdout, re.MULTILINE)
    assert path
    assert Path(path[1]).read_text().strip() in "\n".join(line.rstrip() for line in shown.stdout.splitlines())


def test_every_request_is_accounted_for(shown: subprocess.CompletedProcess[str]) -> None:
    """What was served and what was rejected is everything that was asked, in total and for each kind of client."""
    total = re.search(
        r"^900 requests from (\d+) clients in [\d.]+ s\n(\d+) served, (\d+) rejected$", shown.stdout, re.M
    )
    assert total
    rows = {kind: numbers(cells[:4]) for kind, cells in table(shown.stdout, "Who asked").items()}
    planned = traffic(3, REQUESTS)
    assert list(rows) == list(KINDS)
    for kind, (clients, requests, served, rejected) in rows.items():
        assert clients == len({request.client for request in planned if request.kind == kind})
        assert requests == sum(request.kind == kind for request in planned) == served + rejected
    assert [int(total[2]), int(total[3])] == [
        sum(row[2] for row in rows.values()),
        sum(row[3] for row in rows.values()),
    ]
    assert int(total[1]) == len({request.client for request in planned})


def test_attacks_are_held_and_people_are_not(shown: subprocess.CompletedProcess[str]) -> None:
    """Most guesses at passwords are rejected; of the people who sign in meanwhile nobody is."""
    rows = table(shown.stdout, "Who asked")
    for attack in (ONE_ADDRESS, ONE_ACCOUNT):
        _, requests, _, rejected = numbers(rows[attack][:4])
        assert rejected > requests / 4
    assert numbers(rows[SIGNING_IN][:4])[3] == 0


def test_rejections_are_put_down_to_the_rule_that_rejected(shown: subprocess.CompletedProcess[str]) -> None:
    """A rule looks at what it matches; the rules for logins reject the attacks, each the one that is its own."""
    rules = table(shown.stdout, "Which rule rejected")
    kinds = table(shown.stdout, "Who asked")
    logins = sum(numbers(kinds[kind][:4])[1] for kind in (SIGNING_IN, ONE_ADDRESS, ONE_ACCOUNT))
    assert numbers(rules["client"][-3:])[0] == REQUESTS
    assert numbers(rules["login-address"][-3:])[0] == numbers(rules["login-account"][-3:])[0] == logins
    assert rules["login-account"][:2] == ["account", "4/2s"]
    assert numbers(rules["login-account"][-3:])[1] == numbers(kinds[ONE_ACCOUNT][:4])[3]
    assert numbers(rules["login-address"][-3:])[2] == 1
    most = table(shown.stdout, "Rejected most")
    client, cells = next(iter(most.items()))
    assert client == "203.0.113.66"
    assert cells[0] == ONE_ADDRESS
    assert numbers(cells[1:4]) == numbers(kinds[ONE_ADDRESS][1:4])
    assert "login-address" in cells[4]


def test_it_shows_a_rejection_as_sent_and_that_its_word_is_kept(shown: subprocess.CompletedProcess[str]) -> None:
    """Status line, headers and body of a 429; the same request after the wait is not rejected."""
    head, _, rest = shown.stdout.partition("\nHTTP/1.1 429 Too Many Requests\n")[2].partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines())
    body = rest.splitlines()[0]
    assert len(body) == int(headers["content-length"])
    assert "violated-policies" in body
    assert headers["content-type"] == "application/problem+json"
    again = re.search(r"Asked again after (\d+) s, as Retry-After says: (\d+)", shown.stdout)
    assert again
    assert again[1] == headers["retry-after"]
    assert again[2] in ("200", "401")


def test_the_commands_that_it_recommends_work(shown: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    """Each line under "Where to go next" runs as it stands, given a log; the program is named as it can be found."""
    log = tmp_path / "access.log"
    log.write_bytes(line("192.0.2.1", "GET / HTTP/1.1"))
    listed = re.findall(r"^  \S*ratelimit-mw (.+)$", shown.stdout, re.MULTILINE)
    programs = set(re.findall(r"^  (\S*ratelimit-mw) ", shown.stdout, re.MULTILINE))
    assert all(shutil.which(program) for program in programs)
    assert len(programs) == 1
    assert [command.split()[0] for command in listed] == ["check", "explain", "replay", "demo"]
    for command in listed[:3]:
        words = [str(log) if word.endswith("access.log") else word for word in shlex.split(command)]
        result = CliRunner().invoke(commands(), words)
        assert result.exit_code == 0, result.output


def test_without_a_terminal_there_are_no_colours_and_no_bar(shown: subprocess.CompletedProcess[str]) -> None:
    """What goes to a file is text."""
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "playing" not in shown.stderr
    assert "\r" not in shown.stdout + shown.stderr


def test_on_a_terminal_there_is_a_bar() -> None:
    """A person sees how far it is, and how many were rejected."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        [*DEMO, "--requests", "100"], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as demo:
        os.close(theirs)
        said = b""
        while chunk := _read(ours):
            said += chunk
    os.close(ours)
    assert demo.returncode == 0
    assert b"playing" in said
    assert re.search(rb"100 of 100", said)
    assert b"\x1b[?25h" in said  # the cursor is there again


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux: the other side has gone
        return b""


# -- how it ends ---------------------------------------------------------------------------------------------


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo in the midst of playing, and the address of its server."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs behind them ignore it
    with subprocess.Popen(
        [*DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        signal.signal(signal.SIGINT, before)
        assert demo.stderr is not None
        address = address_in(demo.stderr.readline())
        assert is_served(address)
        yield demo, address


def test_interrupted_it_stops_the_server() -> None:
    """Ctrl-C ends both, with the exit code that shells give for it and no traceback."""
    with started() as (demo, address):
        demo.send_signal(signal.SIGINT)
        stdout, stderr = demo.communicate(timeout=WITHIN)
    assert demo.returncode == 130
    assert stderr == "stopped, and so is the server\n"
    assert "Who asked" not in stdout
    assert not is_served(address)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_it_takes_the_server_along(how: signal.Signals) -> None:
    """The server ends with its demo even when that has no chance to say so."""
    with started() as (demo, address):
        demo.send_signal(how)
        demo.communicate(timeout=WITHIN)
    # Whoever is connected to a server hears when it ends.
    host, port = address.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=WITHIN) as connection:
            assert connection.recv(1) == b""
    except (ConnectionRefusedError, ConnectionResetError):
        pass
    wait_for(lambda: not is_served(address), "the port to be free")


def test_a_server_that_does_not_come_up_is_quoted() -> None:
    """Exit code 1 and what the server itself said, when its port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--requests", "10", "--port", str(port))
    assert done.returncode == 1
    assert f"the demo's server did not come up; it said:\n  cannot listen on 127.0.0.1:{port}: " in done.stderr
    assert "Who asked" not in done.stdout


@pytest.mark.parametrize("missing", ["httpx", "starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 and the line that installs what is missing."""
    monkeypatch.setitem(sys.modules, missing, None)
    result = CliRunner().invoke(commands(), ["demo"])
    assert result.exit_code == 2
    assert 'the demo needs an extra that is not installed: pip install "ratelimit-mw[demo]"' in result.stderr


# -- playing a log -------------------------------------------------------------------------------------------


def line(client: str, request: str) -> bytes:
    return f'{client} - - [17/May/2015:10:05:03 +0000] "{request}" 200 12 "-" "agent"\n'.encode()


LOG = b"".join(
    [
        *(line("192.0.2.1", f"GET /busy/{i} HTTP/1.1") for i in range(120)),
        *(line(f"2001:db8:0:{i}::1", "GET /once?a=1&b=%20 HTTP/1.1") for i in range(5)),
        line("192.0.2.2", "POST /login HTTP/1.1"),
        line("192.0.2.2", "HEAD / HTTP/1.0"),
        line("host.example", "PROPFIND //elsewhere.example/a/../b HTTP/1.1"),
        line("ev\\x1b[31mil", "GET /\\x1b[31m\\xff HTTP/1.1"),
        line("-", "OPTIONS * HTTP/1.1"),
        line("192.0.2.3", "CONNECT elsewhere.example:443 HTTP/1.1"),
        b"not a line of a log\n",
    ]
)
PLAYED = 120 + 5 + 5


@pytest.mark.parametrize("form", ["plain", "gzip", "stdin"])
def test_a_log_is_played_whole(form: str, tmp_path: Path) -> None:
    """Every request of a log, however it comes, is asked from its client's address; the busy client is rejected."""
    path = tmp_path / "access.log"
    path.write_bytes(gzip.compress(LOG) if form == "gzip" else LOG)
    done = run("--log", "-", stdin=LOG) if form == "stdin" else run("--log", str(path))
    assert done.returncode == 0, done.stderr
    assert "1 line of 132 could not be read" in done.stderr
    assert "no answer" not in done.stdout
    assert f"\n{PLAYED} requests from 10 clients in " in done.stdout
    rows = {kind: numbers(cells[:4]) for kind, cells in table(done.stdout, "Who asked").items()}
    assert rows["asked once"] == [8, 8, 8, 0]
    assert rows["asked 2 to 9 times"] == [1, 2, 2, 0]
    clients, requests, served, rejected = rows["asked 100 or more"]
    assert (clients, requests) == (1, 120)
    assert 30 <= served < 120
    most = table(done.stdout, "Rejected most")
    assert list(most) == ["192.0.2.1"]
    assert numbers(most["192.0.2.1"][1:4]) == [120, served, rejected]
    assert "\x1b" not in done.stdout + done.stderr


def test_of_a_log_as_many_requests_as_asked_for(tmp_path: Path) -> None:
    """The first ones, and a note that there may be more."""
    path = tmp_path / "access.log"
    path.write_bytes(LOG)
    done = run("--log", str(path), "--requests", "3")
    assert done.returncode == 0
    assert "playing the first 3 requests" in done.stderr
    assert "\n3 requests from 1 client in " in done.stdout
    assert "3 served, 0 rejected" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "there is no request in it"), (gzip.compress(LOG)[:-20], "cannot be read to its end")],
    ids=["empty", "cut off"],
)
def test_a_log_that_cannot_be_played_is_said_to_be(content: bytes, message: str, tmp_path: Path) -> None:
    """Exit code 1 before any server starts."""
    path = tmp_path / "access.log.gz"
    path.write_bytes(content)
    done = run("--log", str(path))
    assert done.returncode == 1
    assert message in done.stderr
    assert "serving" not in done.stderr
