"""The demo as a user runs it: a real server, real traffic, a table that adds up, and no process left running."""

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Files, line, run
from tables import each

from ratelimit_mw.cli import demo

DEMO = [sys.executable, "-c", "from ratelimit_mw.cli import main; main()", "demo"]
TIMEOUT = 900  # seconds, far more than any run takes on a busy machine
TABLE = "By kind of client"


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


@pytest.fixture(scope="module")
def shown() -> tuple[str, str]:
    """What the demo writes to a file, and to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(DEMO, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
        stdout, _ = process.communicate(timeout=TIMEOUT)
    os.close(ours)
    assert process.returncode == 0, output
    return stdout.decode(), output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # on Linux: the other side is closed
        return b""


@pytest.mark.slow
def test_the_demo_shows_who_was_rejected(shown: tuple[str, str], tmp_path: Path, folder: Path) -> None:
    """Its counts are the same in each run. The commands that it suggests work."""
    stdout, _ = shown
    assert "\x1b" not in stdout
    lines = [" ".join(line.split()) for line in stdout.splitlines()]
    for file in ("settings", "application"):
        (name,) = [line.partition(": ")[2] for line in lines if line.startswith(f"The {file}: ")]
        text = Path(demo.__file__).with_name(name).read_text()
        assert text.strip() in "\n".join(line.rstrip() for line in stdout.splitlines())
    assert lines[lines.index(TABLE) + 3 :][:3] == [
        "readers who log in 30 300 300 0",
        "a crawler 1 200 60 140",
        "an attack on passwords 1 100 5 95",
    ]
    assert "365 allowed, 235 rejected" in lines
    suggested = re.findall(r"^  ratelimit-mw (.+)$", stdout, re.MULTILINE)
    assert [command.split()[0] for command in suggested] == ["init", "check", "explain", "replay"]
    assert max(map(len, stdout.partition("Try next")[2].splitlines())) <= 80
    log = Files(tmp_path).log([line()])
    for command in suggested:
        result = run(*(log if word.endswith("access.log") else word for word in shlex.split(command)))
        assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_terminal_has_a_progress_bar(shown: tuple[str, str]) -> None:
    """The bar shows how many requests were sent. The cursor is visible again afterwards, and the server is stopped."""
    _, terminal = shown
    assert all(text in terminal for text in ("sending", "600/600", "\x1b[?25h"))
    assert not is_served(url_in(terminal))


@pytest.mark.slow
def test_interrupt_stops_the_server() -> None:
    """Ctrl-C gives no traceback."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(DEMO, **pipes, text=True, start_new_session=True) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stderr is not None
        url = url_in(process.stderr.readline())
        assert is_served(url)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, stderr.split()) == (1, ["Aborted!"])
    assert TABLE not in stdout
    assert not is_served(url)


@each("missing", ["httpx", "starlette", "uvicorn"])
def test_missing_extra_is_named(missing: str) -> None:
    """Exit code 2, and the command that installs the extra."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, missing, None)
        result = run("demo")
    assert (result.exit_code, 'pip install "ratelimit-mw[demo]"' in result.stderr) == (2, True)
