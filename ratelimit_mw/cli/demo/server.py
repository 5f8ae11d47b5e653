"""The demo's server process: started, waited for, and always stopped, by its own id. Knows nothing of traffic."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

__all__ = ["SETTINGS", "Server", "ServerFailedError", "server"]

SETTINGS: Final = Path(__file__).with_name("demo.toml")
"""The file that the server runs with."""

_COMES_UP_WITHIN: Final = 30.0
_STOPS_WITHIN: Final = 5.0
_MOST_OUTPUT: Final = 20_000


class ServerFailedError(Exception):
    """The server did not come up, or has ended; ``output`` is what it said."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(what)
        self.output = output


class Server:
    """A server that runs. ``address`` is where it listens."""

    def __init__(self, process: Process, output: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self.address = ""

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def come_up(self) -> None:
        """Wait until it listens. It says the number of its port then; requests may come from that moment."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _COMES_UP_WITHIN)
        except TimeoutError:
            line = b""
        if not line.strip().isdigit():
            raise self.failure("did not come up")
        self.address = f"http://127.0.0.1:{int(line)}"

    def failure(self, what: str) -> ServerFailedError:
        self._output.seek(0)
        return ServerFailedError(f"the demo's server {what}", self._output.read(_MOST_OUTPUT).decode(errors="replace"))

    async def stop(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOPS_WITHIN)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def server(port: int) -> AsyncIterator[Server]:
    """A server on this port of 127.0.0.1, or on a free one when it is 0. Raises ``ServerFailedError``."""
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            # -P: modules that lie in the current folder are not this program's.
            *(sys.executable, "-P", "-m", "ratelimit_mw.cli.demo.app", str(port)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the server
        )
        started = Server(process, output)
        try:
            await started.come_up()
            yield started
        finally:
            await started.stop()
