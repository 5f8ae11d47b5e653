"""The server process of the demo: the code that starts and stops it, and its main function."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from ..output import Failure, note

_START_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 5.0
_MAX_OUTPUT: Final = 20_000


class DemoServer:
    """A server process. ``url`` is where it listens."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._process = process
        self._output = output
        assert process.stdout is not None
        timer = threading.Timer(_START_TIMEOUT, process.kill)
        timer.start()
        port = process.stdout.readline().decode()  # printed once the process listens
        timer.cancel()
        if not port.strip().isdigit():
            raise self.failure("did not start")
        self.url = f"http://127.0.0.1:{int(port)}"

    def is_running(self) -> bool:
        return self._process.poll() is None

    def failure(self, problem: str) -> Failure:
        """Print the output of the process, and return the error to raise."""
        self._output.seek(0)
        for line in self._output.read(_MAX_OUTPUT).decode(errors="replace").splitlines():
            note(f"server: {line}")
        return Failure(f"the server of the demo {problem}")


@contextmanager
def start_server(port: int) -> Iterator[DemoServer]:
    """Run a server on this port of 127.0.0.1, or on a free port when it is 0."""
    # -P: a module in the current folder must not replace an installed one.
    command = (sys.executable, "-P", "-m", __name__, str(port))
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as output:
        # start_new_session: Ctrl-C interrupts the demo only, and the demo then stops the server.
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)  # noqa: S603
        with process:
            try:
                yield DemoServer(process, output)
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()


def main(port: int) -> None:
    """Listen, print the port number, and serve until stdin closes. It closes when the demo ends, even by SIGKILL."""
    import uvicorn

    from .app import app

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{port}: {error.strerror}")
    # Without proxy_headers=False uvicorn would replace the IP address before the middleware reads it.
    options = {"log_level": "warning", "access_log": False, "proxy_headers": False, "timeout_graceful_shutdown": 2}
    server = uvicorn.Server(uvicorn.Config(app, **options))  # type: ignore[arg-type]

    def stop_with_stdin() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=stop_with_stdin, daemon=True).start()
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    server.run(sockets=[listening])


if __name__ == "__main__":
    main(int(sys.argv[1]))
