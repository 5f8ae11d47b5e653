"""Connections to PostgreSQL: libpq, as psycopg wraps it, behind the connections and channels of ``wire``.

A ``PostgresSocket`` sends prepared statements, and reads their results as they arrive. Only to connect blocks, so a
thread of its own does it.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import OperationalError
from psycopg.pq import DiagnosticField, ExecStatus, abc

from ...clock import monotonic
from ...runtime.blocking import run_once
from ..budget import LoopClock
from ..drivers import Driver, ThreadDriver
from ..wire import MORE, BlockingConnection, LoopConnection, ReplyError

_LOST: Final = frozenset({b"22012", b"40001", b"40P01"})
"""The errors of a statement that another client has prevented: division by zero, which the statement causes then, a
failed serialization, and a deadlock."""
_ERRORS: Final = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
_BINARY: Final = 1
_SECONDS: Final = 2  # to log in, and then to set up the session
_UNSENT: Final = 0.001  # seconds until a loop tries again to send what the system has not taken
Statement = tuple[bytes, Sequence[bytes]]
"""The name of a prepared statement, and its parameters."""


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


class Connection(psycopg.Connection[Any]):
    """A connection that is closed when nothing refers to it, but in a forked child not for its parent."""

    def __del__(self, *_: Any) -> None:
        """Give no warning: an application may end without closing its store."""


def connect(parameters: Mapping[str, Any], setup: str) -> Connection:
    """Open a connection, and run statements on it."""
    try:
        opened = Connection.connect(**{"connect_timeout": _SECONDS, **parameters}, autocommit=True)
        try:
            _set_up(opened.pgconn, setup, opened.info.encoding)
        except BaseException:
            opened.close()
            raise
    except psycopg.Error as error:
        raise ConnectionError(_one_line(error.diag.message_primary or error)) from error
    return opened


def _set_up(opened: abc.PGconn, setup: str, encoding: str) -> None:
    """Run statements. A pooler replies to a login even while its server is silent, and the next call connects again."""
    opened.send_query(setup.encode(encoding))
    ends_at, poll = monotonic() + _SECONDS, select.poll()
    poll.register(opened.socket, select.POLLIN)
    while True:
        while opened.is_busy():
            if not poll.poll(max(0.0, ends_at - monotonic()) * 1000):
                raise ConnectionError(f"no reply within {_SECONDS} s of the login")
            opened.consume_input()
        if (result := opened.get_result()) is None:
            return
        if result.status in _ERRORS:
            message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"the connection was lost"
            raise ConnectionError(_one_line(message.decode(encoding, "replace")))


class PostgresSocket:
    """A connection as the socket and the codec of a ``BlockingConnection``. Results come in the order of statements."""

    family = socket.AF_UNIX
    """No error gets a hint about TLS: libpq knows the reason."""

    def __init__(self, connection: Connection) -> None:
        self._opened: Any = connection.pgconn
        self._opened.nonblocking = 1
        self._opened.enter_pipeline_mode()
        self._number = self._opened.socket  # libpq forgets it when the connection is lost
        self._result: abc.PGresult | None = None
        self._seconds = 0.0
        self.is_sending = False
        """Whether the system has not taken all that was sent."""

    def fileno(self) -> int:
        return self._number

    def settimeout(self, seconds: float) -> None:
        self._seconds = seconds

    def send(self, statement: Statement) -> int:
        name, parameters = statement
        formats = [_BINARY] * len(parameters)
        try:
            self._opened.send_query_prepared(name, list(parameters), formats, result_format=_BINARY)
            self._opened.pipeline_sync()
            self.is_sending = self._opened.flush() == 1
        except OperationalError as error:
            raise ConnectionError(_one_line(error)) from error
        return len(statement)

    def recv(self, _: int) -> bytes:
        """Wait until the server has sent something, and let libpq read it."""
        poll = select.poll()
        poll.register(self._number, select.POLLIN | select.POLLOUT * self.is_sending)
        if not poll.poll(self._seconds * 1000):
            raise TimeoutError
        self.exchange()
        return b"read"

    def exchange(self) -> None:
        """Send what is left, and read what has arrived."""
        try:
            if self.is_sending:
                self.is_sending = self._opened.flush() == 1
            self._opened.consume_input()
        except OperationalError as error:
            raise ConnectionError(_one_line(error)) from error

    def feed(self, _: bytes) -> None:
        """Do nothing: libpq has the bytes."""

    def gets(self) -> Any:
        """Return the result of the oldest statement, None after a lost race, or ``MORE``. Raise any other error."""
        while not self._opened.is_busy():
            result = self._opened.get_result()
            if result is None:
                if self._result is None:
                    break
            elif result.status != ExecStatus.PIPELINE_SYNC:
                self._result = result
            elif (done := self._result) is not None:
                self._result = None
                if done.status not in _ERRORS:
                    return done
                if done.error_field(DiagnosticField.SQLSTATE) in _LOST:
                    return None
                raise ReplyError(_one_line(done.error_message.decode("utf-8", "replace")))
        return MORE

    def close(self) -> None:
        self._opened = None


class PostgresTransport(PostgresSocket):
    """A connection of an event loop, as the transport and the codec of a ``LoopConnection``."""

    def __init__(self, connection: Connection, clock: LoopClock) -> None:
        super().__init__(connection)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._number, self._continue)
        self.calls = LoopConnection(self, clock)
        self.calls.connection_made(self)

    def get_extra_info(self, _: str) -> PostgresSocket:
        return self

    def write(self, statement: Statement) -> None:
        self._pass(self.send, statement)

    def _continue(self) -> None:
        if self._opened is not None and self._pass(self.exchange):
            self.calls.data_received(b"")

    def _pass(self, work: Callable[..., object], *arguments: Any) -> bool:
        """Let libpq send or read. Return False if the connection is lost."""
        try:
            work(*arguments)
        except ConnectionError as error:
            self.calls.connection_lost(error)
            return False
        if self.is_sending:
            self._loop.call_later(_UNSENT, self._continue)
        return True

    def abort(self) -> None:
        """Close at once. The connection is lost soon, as with each transport: otherwise it waits for its replies."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._number)
            self._loop.call_soon(self.calls.connection_lost, None)
        self.close()


async def open_connection(
    driver: Driver, connect: Callable[[], Connection], deadline: float
) -> BlockingConnection | LoopConnection:
    """Connect in a thread, and wait until the deadline. On an event loop, the next call finds what connects late."""
    opening = run_once(object(), connect)
    if isinstance(driver, ThreadDriver):
        connected: Any = PostgresSocket(await driver.result(opening, deadline))
        return BlockingConnection(connected, connected, driver.clock)
    return PostgresTransport(await asyncio.wrap_future(opening), driver.clock).calls
