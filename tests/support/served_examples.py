"""Servers that run by the command of an example."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from folders import ROOT
from servers import PATIENCE


@contextmanager
def running(command: str) -> Iterator[str]:
    """Yield the URL of a server that runs by the command, on a free port instead of 8000."""
    assert "8000" in command, "the port that is replaced by a free one"
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
            address = _address(process)
            reading = threading.Thread(target=process.stderr.read, daemon=True)  # a full pipe would block the server
            reading.start()
            yield address
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        output = ""
        for line in process.stderr:
            output += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                return found[0]
        raise AssertionError(f"the server did not start; its output:\n{output}")
    finally:
        watchdog.cancel()
