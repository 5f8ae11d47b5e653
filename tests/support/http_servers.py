"""Web servers in their own processes, and raw requests to them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from folders import SUPPORT
from servers import PATIENCE, free_port, wait_for

__all__ = ["connected", "free_port", "reachable", "running", "say", "served_port", "status"]


# Longer than a test may pause on a busy machine. uvicorn closes an idle connection after 5 s, gunicorn after 2 s.
KEEP_ALIVE = {"uvicorn": ("--timeout-keep-alive", "75"), "gunicorn": ("--keep-alive", "75")}


@contextmanager
def running(
    output: Path, target: str | int, *command: str, folder: Path = SUPPORT, **environment: str
) -> Iterator[None]:
    """Run a server process from its first response until the block ends."""
    with output.open("wb") as said:
        full = [sys.executable, "-m", *command, *KEEP_ALIVE.get(command[0], ())]
        process = subprocess.Popen(full, cwd=folder, env={**os.environ, **environment}, stdout=said, stderr=said)
        try:
            wait_for(lambda: process.poll() is not None or reachable(target), f"{' '.join(command)}: {output}")
            assert process.poll() is None, output.read_text()
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def served_port(output: Path, command: str, folder: Path = SUPPORT, **environment: str) -> Iterator[int]:
    """Run a command of uvicorn or gunicorn on a free port, and yield the port."""
    server, *words = command.split()
    port = free_port()
    place = ("--port", str(port)) if server == "uvicorn" else ("--bind", f"127.0.0.1:{port}")
    with running(output, port, server, *place, *words, folder=folder, **environment):
        yield port


def reachable(target: str | int) -> bool:
    try:
        connected(target).close()
    except OSError:
        return False
    return True


def connected(target: str | int) -> socket.socket:
    if isinstance(target, int):
        return socket.create_connection(("127.0.0.1", target), timeout=PATIENCE)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    try:
        sock.connect(target)
    except OSError:
        sock.close()
        raise
    return sock


def say(target: str | int, request: str) -> bytes:
    """Return the whole response to a raw request."""
    with connected(target) as sock:
        sock.sendall(request.replace("\n", "\r\n").encode("latin-1"))
        answer = b""
        while part := sock.recv(65536):
            answer += part
    return answer


def status(target: str | int, line: str, *headers: str) -> int:
    answer = say(target, "\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "Connection: close", "", ""]))
    return int(answer.split(b" ", 2)[1])
