"""Connections to PostgreSQL, for threads or for one event loop: libpq as psycopg wraps it, with deadlines.

A ``Session`` sends statements without waiting for replies, and reads replies as they arrive. Only to connect blocks,
so a thread of its own does it. A session that failed, or that did not reply in time, is closed: no reply is read late.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import OperationalError
from psycopg.pq import DiagnosticField, ExecStatus, abc

from ..background import run_once
from ..budget import LoopClock, ThreadClock

LOST: Final = frozenset({b"22012", b"40001", b"40P01"})
"""The errors of a statement that another client has prevented: division by zero, which the statement causes then, a
failed serialization, and a deadlock."""
_ERRORS: Final = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
_BINARY: Final = 1

Connection: TypeAlias = "psycopg.Connection[Any]"
Connect = Callable[[], Connection]


class ServerError(Exception):
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
    """One connection. Replies come in the order of the statements, and resolve the futures of ``send``.

    Args:
        connection: The connection. Only its lower layer is used.
        statements: The text of each statement by its name. It is prepared at first use.
        create: Creates a future.
    """

    def __init__(self, connection: Connection, statements: Mapping[str, str], create: Callable[[], Any]) -> None:
        self._connection, self._opened = connection, (opened := connection.pgconn)
        opened.nonblocking = 1
        opened.enter_pipeline_mode()
        self._statements = dict(statements)  # those that are not prepared
        self._create = create
        self._calls: deque[Any] = deque()
        self._reply: abc.PGresult | None = None
        self.fd = opened.socket
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self.is_usable = True
        self.is_sending = False
        """Whether the system has not taken all that was sent."""
        self.ended: Callable[[], object] = bool

    def send(self, name: str, parameters: Sequence[bytes]) -> Any:
        """Send a statement. Return the future of its result."""
        call = self._create()
        try:
            if text := self._statements.pop(name, None):
                self._opened.send_prepare(name.encode(), text.encode())
            self._opened.send_query_prepared(
                name.encode(), parameters, [_BINARY] * len(parameters), result_format=_BINARY
            )
            self._opened.pipeline_sync()
            self._calls.append(call)
            self.flush()
        except OperationalError as error:
            self.end(error)
            raise ConnectionError(f"the connection is lost: {error}") from error
        return call

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
            self.end(error)

    def _resolve(self) -> None:
        """Resolve the oldest call with its reply. After an error that is no lost race, the connection is closed."""
        call, reply, self._reply = self._calls.popleft(), self._reply, None
        error = ServerError(reply) if reply is not None and reply.status in _ERRORS else None
        if not call.done():
            call.set_result(error or reply)
        if error is not None and error.state not in LOST:
            self.end(error)

    def wait(self, call: Future[Any], seconds: float) -> None:
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

    def end(self, error: object = "it was closed") -> None:
        """Close the connection. All calls fail."""
        if self.is_usable:
            self.is_usable = False
            self.ended()
            self._connection.close()
            for call in self._calls:
                if not call.done():
                    call.set_exception(ConnectionError(f"the connection is lost: {error}"))
                    call.exception()  # its caller may have left: asyncio would log the error


class ThreadSessions:
    """The sessions of threads, one for each call at a time. The idle ones are kept, last used first."""

    def __init__(self, connect: Connect, statements: Mapping[str, str], clock: ThreadClock) -> None:
        self._connect, self._statements, self._clock = connect, statements, clock
        self._idle: list[Session] = []
        self._closings = 0

    async def ask(self, name: str, parameters: Sequence[bytes], due: float) -> Any:
        """Return the result of a statement, or the ``ServerError``."""
        closings, session = self._closings, self._take() or self._open(due)
        try:
            call = session.send(name, parameters)
            self._clock.wait(partial(session.wait, call), due)
            result = call.result()
        except BaseException:
            session.end()
            self.close()  # the idle ones may be dead too, and no other call should have to find out
            raise
        if closings == self._closings and session.is_usable:
            self._idle.append(session)
        else:
            session.end()
        return result

    def _open(self, due: float) -> Session:
        opening = run_once(object(), self._connect)
        try:
            return Session(self._clock.result(opening, due), self._statements, Future)
        except TimeoutError:
            opening.add_done_callback(_close_late)
            raise

    def _take(self) -> Session | None:
        try:
            while not (session := self._idle.pop()).is_quiet():
                session.end()
        except IndexError:  # a check before would race with other threads
            return None
        return session

    def close(self) -> None:
        """Close the idle connections, and those in use when their calls end."""
        self._closings += 1
        while (session := self._take()) is not None:
            session.end()


class LoopSessions:
    """The one session of an event loop, opened when a call needs it. Calls do not wait for each other's replies."""

    def __init__(self, connect: Connect, statements: Mapping[str, str], clock: LoopClock) -> None:
        self._connect, self._statements, self._clock = connect, statements, clock
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._opening: asyncio.Future[Connection] | None = None
        self._connecting: Future[Connection]

    async def ask(self, name: str, parameters: Sequence[bytes], due: float) -> Any:
        """Return the result of a statement, or the ``ServerError``."""
        if (session := self._session) is None or not session.is_usable:
            session = await self._open(due)
        call = session.send(name, parameters)
        if session.is_sending:
            self._loop.add_writer(session.fd, self._write, session)
        try:
            return await self._clock.watch(call, due)
        except TimeoutError:
            session.end("no reply within the time budget")
            raise

    async def _open(self, due: float) -> Session:
        """Wait until a thread has connected for all calls, at most until the deadline."""
        if self._opening is None:
            self._connecting = run_once(object(), self._connect)
            self._opening = asyncio.wrap_future(self._connecting)
            self._opening.add_done_callback(self._begin)
        await self._clock.result(self._opening, due)
        if self._session is None:
            raise ConnectionError("the connection was closed")
        return self._session

    def _begin(self, opening: asyncio.Future[Connection]) -> None:
        is_wanted, self._opening = opening is self._opening, None
        if is_wanted and not opening.cancelled() and opening.exception() is None:
            self._session = session = Session(opening.result(), self._statements, self._loop.create_future)
            self._loop.add_reader(session.fd, session.read)
            session.ended = partial(self._forget, session.fd)

    def _forget(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)

    def _write(self, session: Session) -> None:
        try:
            session.flush()
        except OperationalError as error:
            session.end(error)
        if not session.is_sending and session.is_usable:
            self._loop.remove_writer(session.fd)

    def close(self) -> None:
        if self._opening is not None:
            self._opening = None
            self._connecting.add_done_callback(_close_late)
        if self._session is not None:
            self._session.end()


def _close_late(opening: Future[Connection]) -> None:
    """Close a connection for which no call waits any longer."""
    if opening.exception() is None:
        opening.result().close()
