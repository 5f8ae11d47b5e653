"""Connections to PostgreSQL, for threads or for one event loop: libpq as psycopg wraps it, with deadlines.

A ``Session`` sends statements without waiting for replies, and reads replies as they arrive. Only to connect blocks,
so a thread of its own does it. A session that failed, or that did not reply in time, is closed: no reply is read late.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import OperationalError
from psycopg.pq import DiagnosticField, ExecStatus, abc

from ..blocking import run_once
from ..budget import LoopClock, ThreadClock
from ..ways import Threads, Way
from ..wire import ReplyError

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


class Session:
    """One connection. Replies come in the order of the statements, and resolve the futures of ``send``."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], create: Callable[[], Any]) -> None:
        self._connection, self._opened = connection, (opened := connection.pgconn)
        opened.nonblocking = 1
        opened.enter_pipeline_mode()
        self._statements = dict(statements)  # those that are not prepared
        self._create = create
        self._calls: deque[Any] = deque()
        self._reply: abc.PGresult | None = None
        self._pid = os.getpid()
        self.fd = opened.socket
        self.is_usable = True
        self.is_sending = False
        """Whether the system has not taken all that was sent."""

    def send(self, statement: tuple[str, Sequence[bytes]], _: int, deadline: float) -> Awaitable[list[Any]]:
        """Send a statement: its name and its parameters. Return its result, to be awaited."""
        call, (name, parameters) = self._create(), statement
        try:
            if text := self._statements.pop(name, None):
                self._opened.send_prepare(name.encode(), text.encode())
            formats = [_BINARY] * len(parameters)
            self._opened.send_query_prepared(name.encode(), list(parameters), formats, result_format=_BINARY)
            self._opened.pipeline_sync()
            self._calls.append(call)
            self.flush()
        except OperationalError as error:
            self.close(error)
            raise ConnectionError(f"the connection is lost: {error}") from error
        return self._result(call, deadline)

    @abstractmethod
    async def _result(self, call: Any, deadline: float) -> list[Any]:
        """Return the result of a future."""

    def flush(self) -> None:
        """Send what is left."""
        self.is_sending = self._opened.flush() == 1

    def read(self) -> None:
        """Read what has arrived."""
        try:
            self._opened.consume_input()
            while self._calls and not self._opened.is_busy():
                result = self._opened.get_result()
                if result is None:
                    if self._reply is None:
                        break
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._resolve()
                elif self._reply is None or self._reply.status not in _ERRORS:
                    self._reply = result
        except OperationalError as error:
            self.close(error)

    def _resolve(self) -> None:
        """Resolve the oldest call with its reply. After an error that is no lost race, the connection is closed."""
        call, reply, self._reply = self._calls.popleft(), self._reply, None
        error = ServerError(reply) if reply is not None and reply.status in _ERRORS else None
        if not call.done():
            call.set_result([error or reply])
        if error is not None and error.state not in LOST:
            self.close(error)

    def close(self, error: object = "it was closed") -> None:
        """Close the connection. All calls fail."""
        if not self.is_usable:
            return
        self.is_usable = False
        self._stop()
        if os.getpid() != self._pid:
            _OF_PARENTS.append(self._connection)
            return
        self._connection.close()
        for call in self._calls:
            if not call.done():
                call.set_exception(ConnectionError(f"the connection is lost: {error}"))
                call.exception()  # its caller may have left: asyncio would log the error

    retire = close

    def _stop(self) -> None:
        """Stop to look for replies."""


class ThreadSession(Session):
    """A session for one call at a time."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], clock: ThreadClock) -> None:
        super().__init__(connection, statements, Future)
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    async def _result(self, call: Future[list[Any]], deadline: float) -> list[Any]:
        self._clock.wait(partial(self._wait, call), deadline)
        return call.result()

    def _wait(self, call: Future[Any], seconds: float) -> None:
        """Wait until the server has replied to a call; ``TimeoutError`` if it has not."""
        if self.is_sending:
            self._poll.modify(self.fd, select.POLLIN | select.POLLOUT)
        if self._poll.poll(seconds * 1000):
            if self.is_sending:
                self.flush()
                self._poll.modify(self.fd, select.POLLIN)
            self.read()
        if not call.done():
            raise TimeoutError

    def is_quiet(self) -> bool:
        """Return whether the connection is open and has nothing to read."""
        return self.is_usable and not self._poll.poll(0)


class LoopSession(Session):
    """The session of an event loop. Calls do not wait for each other's replies."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], clock: LoopClock) -> None:
        self._loop, self._clock = asyncio.get_running_loop(), clock
        super().__init__(connection, statements, self._loop.create_future)
        self._loop.add_reader(self.fd, self.read)

    async def _result(self, call: asyncio.Future[list[Any]], deadline: float) -> list[Any]:
        try:
            return await self._clock.watch(call, deadline)
        except TimeoutError:
            self.close("no reply within the time budget")
            raise

    def flush(self) -> None:
        was_sending = self.is_sending
        super().flush()
        if self.is_sending:
            self._loop.add_writer(self.fd, self._write)
        elif was_sending:
            self._loop.remove_writer(self.fd)

    def _write(self) -> None:
        try:
            self.flush()
        except OperationalError as error:
            self.close(error)

    def _stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)


async def open_session(
    way: Way, connect: Callable[[], Connection], statements: Mapping[str, str], deadline: float
) -> ThreadSession | LoopSession:
    """Connect in a thread, and wait until the deadline. On an event loop, the next call finds what connects late."""
    opening = run_once(object(), connect)
    try:
        if isinstance(way, Threads):
            return ThreadSession(await way.result(opening, deadline), statements, way.clock)
        return LoopSession(await asyncio.shield(asyncio.wrap_future(opening)), statements, way.clock)
    except BaseException:
        opening.add_done_callback(_close_late)
        raise


def _close_late(opening: Future[Connection]) -> None:
    """Close a connection for which no call waits any longer."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
