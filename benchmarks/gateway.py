"""The decision service on uvicorn: requests a second, latency and processor time, beside a bare application."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.timing import Turn, in_turns, median, ratio, table
from ratelimit_mw.asgi import RateLimitMiddleware

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
REQUESTS = 2_000
ROUNDS = 9
SETTINGS = 'trusted_proxies = ["127.0.0.1"]\n[[rules]]\nname = "api"\nlimits = "1000000/minute"\n'
UVICORN = [sys.executable, "-m", "uvicorn", "--log-level", "warning", "--no-access-log", "--no-proxy-headers"]
SERVE = [str(Path(sys.executable).with_name("ratelimit-mw")), "serve", "ratelimit.toml", "--gateway", "nginx"]
SERVE += ["--admin-token-file", "token", "--port"]
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
QUESTION = b'{"features": {"ip": "192.0.2.7"}}'
GET = b"GET %s HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.7\r\nX-Original-Method: GET\r\nX-Original-URI: /\r\n\r\n"
TOKEN = "only-for-benchmarks"
CHECK = (
    b"POST /v1/check HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


limited = RateLimitMiddleware(bare, limits="1000000/minute")


class Asked:
    """A server process. Each turn has a connection of its own: a server closes one that waits for the others."""

    def __init__(self, port: int, pid: int, request: bytes) -> None:
        self._port, self._pid, self._request = port, pid, request

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self) -> Turn:
        with socket.create_connection((HOST, self._port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            before, start = self.cpu(), time.perf_counter()
            for _ in range(REQUESTS):
                sock.sendall(self._request)
                head, _, body = sock.recv(65_536).partition(b"\r\n\r\n")
                assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")), head
                if not body and (length := LENGTH.search(head)) and int(length[1]):
                    sock.recv(65_536)  # uvicorn sends the body apart
            seconds = time.perf_counter() - start
        return Turn(REQUESTS / seconds, (self.cpu() - before) / REQUESTS * 1e6)


@contextmanager
def served(command: list[str], port: int, folder: Path) -> Iterator[int]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, str(port)], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def report() -> str:
    requests = {
        "bare application": (0, GET % b"/"),
        "application with the middleware": (1, GET % b"/"),
        "service, `/auth`": (2, GET % b"/auth"),
        "service, `/v1/check`": (2, CHECK % (TOKEN.encode(), len(QUESTION), QUESTION)),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "ratelimit.toml").write_text(SETTINGS)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(TOKEN)
        commands = [[*UVICORN, f"benchmarks.gateway:{app}", "--port"] for app in ("bare", "limited")]
        commands.append(SERVE)
        servers = [
            (port, stack.enter_context(served(command, port, folder))) for port, command in enumerate(commands, 11_200)
        ]
        asked = [Asked(*servers[number], request) for number, request in requests.values()]
        turns = in_turns([each.turn for each in asked], ROUNDS, patience=60)
    rows = []
    for name, found in zip(requests, turns, strict=True):
        middle = median(found)
        rows.append(
            (
                name,
                f"{middle.rate:,.0f}",
                f"{1000 / middle.rate:.2f}",
                f"{ratio(found, turns[0]):.2f}",
                f"{middle.cpu:.0f}",
            )
        )
    head = ("one connection, memory store", "requests/s", "latency, ms", "relative to the bare application", "CPU, µs")
    return table("Decision service on uvicorn", rows, head)
