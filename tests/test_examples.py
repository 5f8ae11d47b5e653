"""Every file in examples/ does what it says, run by the very command that it gives, over real HTTP."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ratelimit_mw import load_settings

ROOT = Path(__file__).parent.parent
FILES = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file() and path.suffix != ".pyc")
APPS = [path for path in FILES if path.suffix == ".py"]
COMMANDS = [
    (path.name, command) for path in APPS for command in re.findall(r"^# Run it: (.+)$", path.read_text(), re.MULTILINE)
]
COMES_UP_WITHIN = 60.0
MORE_THAN_ANY_LIMIT = 150


@contextmanager
def running(command: str) -> Iterator[str]:
    """The address of a server started by the command, on a free port in place of its 8000."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        shlex.split(command.replace("8000", "0")),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    watchdog = threading.Timer(COMES_UP_WITHIN, process.kill)
    watchdog.start()
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                return found[0]
        raise AssertionError(f"the server did not come up; it said:\n{said}")
    finally:
        watchdog.cancel()


@pytest.mark.parametrize(("file", "command"), COMMANDS, ids=[f"{file}:{command}" for file, command in COMMANDS])
def test_an_example_serves_until_its_limit_and_then_refuses(file: str, command: str) -> None:
    """The command in the file starts a server that says how much is left, and that answers 429 once nothing is."""
    assert "8000" in command, "the port that this test replaces by a free one"
    with running(command) as address, httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        first = client.get("/")
        answers = [first]
        while answers[-1].status_code == 200 and len(answers) < MORE_THAN_ANY_LIMIT:
            answers.append(client.get("/"))
    refused = answers.pop()
    assert first.status_code == 200
    assert int(first.headers["x-ratelimit-remaining"]) == int(first.headers["x-ratelimit-limit"]) - 1
    assert "r=0" not in first.headers["ratelimit"]
    assert len(answers) >= int(first.headers["x-ratelimit-limit"])
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["violated-policies"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False)


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_every_file_is_tested(path: Path) -> None:
    """A program says how to run it, which is what the test above runs; settings load; there is nothing else."""
    if path.suffix == ".py":
        assert path.name in [file for file, _ in COMMANDS]
    else:
        assert load_settings(path).rules
