"""The demo as a user runs it: a real server, real traffic, a table that adds up, and no process left running."""

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

from ratelimit_mw.cli.group import ratelimit_mw

PROGRAM = "from ratelimit_mw.cli import main; main()"
DEMO = [sys.executable, "-c", PROGRAM, "demo"]
TIMEOUT = 900  # seconds, far more than any run takes on a busy machine
TABLE = "By kind of client"

slow = pytest.mark.slow


def run() -> subprocess.CompletedProcess[str]:
    return subprocess.run(DEMO, capture_output=True, text=True, timeout=TIMEOUT, check=False)


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


@slow
def test_the_demo_shows_who_was_rejected_and_why(tmp_path: Path) -> None:
    """Its counts are the same in each run. The commands that it suggests work, and its server has stopped."""
    done = run()
    assert done.returncode == 0, done.stderr
    assert not is_served(url_in(done.stderr))
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for file in ("settings", "application"):
        (path,) = [line.partition(": ")[2] for line in lines if line.startswith(f"The {file}: ")]
        assert Path(path).read_text().strip() in "\n".join(line.rstrip() for line in done.stdout.splitlines())
    shown = lines[lines.index(TABLE) + 3 :][:3]
    assert shown == [
        "readers who log in 30 300 300 0",
        "a crawler 1 200 60 140 client",
        "an attack on passwords 1 100 5 95 login",
    ]
    assert "365 allowed, 235 rejected" in lines
    head, _, rest = done.stdout.partition("\nHTTP/1.1 429 Too Many Requests\n")[2].partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines())
    assert len(rest.splitlines()[0]) == int(headers["content-length"])
    assert 0 < int(headers["retry-after"]) <= 3600
    log = tmp_path / "access.log"
    log.write_text('192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 12 "-" "agent"\n')
    suggested = re.findall(r"^  (\S*ratelimit-mw) (.+)$", done.stdout, re.MULTILINE)
    assert [command.split()[0] for _, command in suggested] == ["check", "explain", "replay"]
    for program, command in suggested:
        assert shutil.which(program)
        words = [str(log) if word.endswith("access.log") else word for word in shlex.split(command)]
        result = CliRunner().invoke(ratelimit_mw, words)
        assert result.exit_code == 0, result.output


@slow
def test_terminal_has_a_progress_bar() -> None:
    """The bar shows how many requests were sent. The cursor is visible again afterwards."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(DEMO, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
    os.close(ours)
    assert demo.returncode == 0
    assert b"sending" in output
    assert b"600 of 600 requests" in output
    assert b"\x1b[?25h" in output


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # on Linux: the other side is closed
        return b""


# -- the end of a run ----------------------------------------------------------------------------------------


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that is sending requests, and the URL of its server."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
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


@pytest.mark.parametrize("missing", ["httpx", "starlette", "uvicorn"])
def test_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, and the command that installs the extra."""
    monkeypatch.setitem(sys.modules, missing, None)
    result = CliRunner().invoke(ratelimit_mw, ["demo"])
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[demo]"' in result.stderr
