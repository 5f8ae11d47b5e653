"""The LMDB store in the workers of a real server."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.thorough

GUNICORN_APP = """
import os
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

settings = Settings(on_store_error="deny", store_timeout="5s")
limiter = Limiter([Rule(name="api", limits="30/day", key=["ip"])], "lmdb://{path}", settings=settings)
assert limiter.hit({{"ip": "opened before the fork"}})

def app(environ, start_response):
    verdict = limiter.hit({{"ip": environ["PATH_INFO"]}})
    start_response("200 OK" if verdict else "503 Down" if verdict.unavailable else "429 Too Many", [])
    return [str(os.getpid()).encode()]
"""


@contextmanager
def gunicorn(folder: Path) -> Iterator[httpx.Client]:
    """Three workers, forked from a master that has the store open."""
    (folder / "application.py").write_text(GUNICORN_APP.format(path=folder / "state"))
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", "unix:socket", "application:app"]
    server = subprocess.Popen([*command, "--log-level", "warning"], cwd=folder)
    transport = httpx.HTTPTransport(uds=str(folder / "socket"))
    try:
        while not listens(folder / "socket"):
            assert server.poll() is None
            time.sleep(0.02)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=180) as client:
            yield client
    finally:
        server.terminate()
        server.wait()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_preloaded_gunicorn_workers_count_together_over_http(tmp_path: Path) -> None:
    """Three workers allow 30 of 90 requests while one of them is killed. The counts survive a restart."""
    with gunicorn(tmp_path) as client:
        seen = [client.get("/a", headers={"connection": "close"}) for _ in range(20)]
        os.kill(int(seen[0].text), signal.SIGKILL)
        for _ in range(70):
            try:
                seen.append(client.get("/a", headers={"connection": "close"}))
            except httpx.TransportError:
                continue  # sent to the worker that was killed
        assert [response.status_code for response in seen[:30]] == [200] * 30
        assert {response.status_code for response in seen[30:]} == {429}
    assert (tmp_path / "state" / "ratelimit_mw.lock").read_text() == ""
    with gunicorn(tmp_path) as client:
        assert client.get("/a").status_code == 429
