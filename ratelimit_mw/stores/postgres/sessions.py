"""Connections to PostgreSQL: libpq, as psycopg wraps it, behind the connections and channels of ``wire``.

A ``Link`` sends statements, and reads their replies as they arrive. Only to connect blocks, so a thread of its own does
it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import OperationalError
from psycopg.pq import DiagnosticField, ExecStatus, abc

from ..blocking import run_once
from ..budget import LoopClock
from ..ways import Threads, Way
from ..wire import MORE, BlockingConnection, LoopConnection, ReplyError

LOST: Final = frozenset({b"22012", b"40001", b"40P01"})
"""The errors of a statement that another client has prevented: division by zero, which the statement causes then, a
failed serialization, and a deadlock."""
_ERRORS: Final = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
_BINARY: Final = 1

_OF_PARENTS: Final[list[Any]] = []
"""The connections that a forked child must not even close."""

Connection: TypeAlias = "psycopg.Connection[Any]"


class ServerError(ReplyError):
    """An error that the server has replied."""

    def __init__(self, result: abc.PGresult) -> None:
        super().__init__(_message_of(result.error_message.decode("utf-8", "replace")))
        self.state = result.error_field(DiagnosticField.SQLSTATE) or b""


def _message_of(text: str) -> str:
    """Return a message of libpq as one line."""
    return " ".join(text.split())


def connect(parameters: Mapping[str, str], setup: Callable[[Connection], object]) -> Connection:
    """Open a connection. It blocks, but other threads can run."""
    try:
        opened = psycopg.connect(**_with_addresses(parameters), autocommit=True)
        try:
            setup(opened)
        except BaseException:
            opened.close()
            raise
    except psycopg.Error as error:
        raise ConnectionError(_message_of(str(error))) from error
    return opened


def _with_addresses(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return parameters with the address of each host: libpq would stop all threads while it asks a name server.

    A host without an address is left out, unless no host has one.
    """
    hosts, ports = parameters.get("host", "").split(","), parameters.get("port", "").split(",")
    if not hosts[0] or hosts[0].startswith("/"):
        return dict(parameters)
    found: list[tuple[str, str, str]] = []
    problems = []
    for host, port in zip(hosts, ports, strict=True):
        try:
            addresses = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            problems.append(f"{host}: {error}")
        else:
            found += [(host, port, str(address[0])) for *_, address in addresses]
    if not found:
        raise ConnectionError(", ".join(problems))
    names = ("host", "port", "hostaddr")
    return {**parameters, **{name: ",".join(each) for name, each in zip(names, zip(*found, strict=True), strict=True)}}


class Link:
    """One connection, as the socket and the codec of a ``BlockingConnection``. Replies come in the order of statements.

    Args:
        connection: The connection.
        statements: The statements by their names. Each is prepared when it is first sent.
    """

    family = socket.AF_UNIX
    """No error gets a hint about TLS: libpq knows the reason."""

    def __init__(self, connection: Connection, statements: Mapping[str, str]) -> None:
        self._connection, self._opened = connection, (opened := connection.pgconn)
        opened.nonblocking = 1
        opened.enter_pipeline_mode()
        self._number = opened.socket  # libpq forgets it when the connection is lost
        self._statements = dict(statements)  # those that are not prepared
        self._reply: abc.PGresult | None = None
        self._pid = os.getpid()
        self._seconds = 0.0
        self._poll = select.poll()
        self._poll.register(self._number, select.POLLIN)
        self.is_sending = False
        """Whether the system has not taken all that was sent."""

    def fileno(self) -> int:
        return self._number

    def settimeout(self, seconds: float) -> None:
        self._seconds = seconds

    def send(self, statement: tuple[str, Sequence[bytes]]) -> int:
        """Send a statement: its name and its parameters."""
        name, parameters = statement
        try:
            if text := self._statements.pop(name, None):
                self._opened.send_prepare(name.encode(), text.encode())
            formats = [_BINARY] * len(parameters)
            self._opened.send_query_prepared(name.encode(), list(parameters), formats, result_format=_BINARY)
            self._opened.pipeline_sync()
            self.is_sending = self._opened.flush() == 1
        except OperationalError as error:
            raise ConnectionError(_message_of(str(error))) from error
        return len(statement)

    def recv(self, _: int) -> bytes:
        """Wait until the server has sent something, and let libpq read it."""
        if self.is_sending:
            self._poll.modify(self.fileno(), select.POLLIN | select.POLLOUT)
        if not self._poll.poll(self._seconds * 1000):
            raise TimeoutError
        if self.is_sending:
            self._poll.modify(self.fileno(), select.POLLIN)
        self.exchange()
        return b"read"

    def exchange(self) -> None:
        """Send what is left, and read what has arrived."""
        try:
            if self.is_sending:
                self.is_sending = self._opened.flush() == 1
            self._opened.consume_input()
        except OperationalError as error:
            raise ConnectionError(_message_of(str(error))) from error

    def feed(self, _: bytes) -> None:
        """Do nothing: libpq has the bytes."""

    def gets(self) -> Any:
        """Return the result of the oldest statement, or ``MORE``. An error that is no lost race is raised."""
        while not self._opened.is_busy():
            result = self._opened.get_result()
            if result is None:
                if self._reply is None:
                    break
            elif result.status == ExecStatus.PIPELINE_SYNC:
                reply, self._reply = self._reply, None
                error = ServerError(reply) if reply is not None and reply.status in _ERRORS else None
                if error is not None and error.state not in LOST:
                    raise error
                return error or reply
            elif self._reply is None or self._reply.status not in _ERRORS:
                self._reply = result
        return MORE

    def close(self) -> None:
        if os.getpid() != self._pid:
            _OF_PARENTS.append(self._connection)
        else:
            self._connection.close()


class LoopLink(Link):
    """A connection of an event loop, as the transport and the codec of a ``LoopConnection``."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], clock: LoopClock) -> None:
        super().__init__(connection, statements)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.fileno(), self._continue)
        self.calls = LoopConnection(self, clock)
        self.calls.connection_made(self)

    def get_extra_info(self, _: str) -> Link:
        return self

    def write(self, statement: tuple[str, Sequence[bytes]]) -> None:
        try:
            self.send(statement)
        except ConnectionError as error:
            self.calls.connection_lost(error)
        else:
            if self.is_sending:
                self._loop.add_writer(self.fileno(), self._continue)

    def _continue(self) -> None:
        was_sending = self.is_sending
        try:
            self.exchange()
        except ConnectionError as error:
            self.calls.connection_lost(error)
            return
        if was_sending and not self.is_sending:
            self._loop.remove_writer(self.fileno())
        self.calls.data_received(b"")

    def abort(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fileno())
            self._loop.remove_writer(self.fileno())
        self.close()


async def open_connection(
    way: Way, connect: Callable[[], Connection], statements: Mapping[str, str], deadline: float
) -> BlockingConnection | LoopConnection:
    """Connect in a thread, and wait until the deadline. On an event loop, the next call finds what connects late."""
    opening = run_once(object(), connect)
    try:
        if isinstance(way, Threads):
            link: Any = Link(await way.result(opening, deadline), statements)
            return BlockingConnection(link, link, way.clock)
        return LoopLink(await asyncio.shield(asyncio.wrap_future(opening)), statements, way.clock).calls
    except BaseException:
        opening.add_done_callback(_close_late)
        raise


def _close_late(opening: Future[Connection]) -> None:
    """Close a connection for which no call waits any longer."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
