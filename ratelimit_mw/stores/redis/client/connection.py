"""Blocking connections to one server. redis-py logs in, selects and parses; each call has a deadline.

A connection serves one call at a time, and no call after one that failed on it. The coroutines of this file block:
they never wait for an event loop, so `run_blocking` runs them and those that call them.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast

import redis
from hiredis import pack_command

from ....forksafe import check_process, run_in_child
from ...budget import ThreadClock
from ..address import Address
from .connect import new_connection, open_socket
from .errors import Command, error_code
from .server import Transport

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that makes blocking calls only."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a blocking call waits for an event loop")


class DeadlineSocket:
    """A socket of which every operation ends by ``deadline``, a time of the clock."""

    def __init__(self, plain: socket.socket, clock: ThreadClock, deadline: float) -> None:
        self.deadline = deadline
        self._clock = clock
        self._socket = plain
        self._settimeout = plain.settimeout
        self.shutdown, self.close, self.fileno = plain.shutdown, plain.close, plain.fileno

    def sendall(self, data: bytes) -> None:
        self._settimeout(self._clock.seconds_until(self.deadline))
        self._socket.sendall(data)

    def recv_into(self, buffer: bytearray) -> int:
        def receive(seconds: float) -> int:
            self._settimeout(seconds)
            return self._socket.recv_into(buffer)

        return self._clock.wait(receive, self.deadline)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and has nothing to read."""
        self._settimeout(0)
        try:
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)  # below TLS, which cannot peek
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


class DeadlineCalls:
    """Adds a bounded connect and a deadline for each call to a connection of redis-py."""

    open_arguments: tuple[Address, str, int, float, ThreadClock]
    send_packed_command: Callable[..., None]
    read_response: Callable[[], Any]
    disconnect: Callable[[], None]

    def _connect(self) -> DeadlineSocket:
        *_, deadline, clock = self.open_arguments
        self.socket = DeadlineSocket(open_socket(*self.open_arguments), clock, deadline)
        return self.socket

    def send(self, commands: Sequence[Command], deadline: float) -> None:
        self.socket.deadline = deadline
        self.send_packed_command(tuple(map(pack_command, commands)), check_health=False)

    def receive(self) -> Any:
        """Return the reply to a command, or the error that the server replied."""
        try:
            return self.read_response()
        except redis.ResponseError as error:
            return error


class RedisConnection(DeadlineCalls, redis.Connection):  # type: ignore[misc]
    """A connection over TCP, with or without TLS."""


class UnixConnection(DeadlineCalls, redis.UnixDomainSocketConnection):  # type: ignore[misc]
    """A connection over a Unix domain socket."""


async def connect(clock: ThreadClock, address: Address, host: str, port: int, deadline: float) -> DeadlineCalls:
    """Return a new connection, logged in, to one of the servers of an address."""
    connection = new_connection(RedisConnection, UnixConnection, address, host, port, deadline, clock)
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return cast(DeadlineCalls, connection)


class RedisConnectionPool:
    """The idle connections to one server, last used first. It has no limit, so no thread waits for another one."""

    def __init__(self, connect: Callable[[float], Awaitable[DeadlineCalls]]) -> None:
        self._connect = connect
        self._idle: list[DeadlineCalls] = []
        self._pid = os.getpid()
        run_in_child(self, RedisConnectionPool.close)  # a child must not use the connections of its parent

    async def send(self, commands: Sequence[Command], deadline: float) -> Callable[[], Awaitable[list[Any]]]:
        """Send commands over one connection, and return the call that reads their replies."""
        connection = self._take() or await self._connect(deadline)
        with self._closed_on_failure(connection):
            connection.send(commands, deadline)
        return partial(self._receive, connection, len(commands))

    async def _receive(self, connection: DeadlineCalls, count: int) -> list[Any]:
        with self._closed_on_failure(connection):
            replies = [connection.receive() for _ in range(count)]
        self._idle.append(connection)
        if any(isinstance(reply, redis.ResponseError) and error_code(reply) == "READONLY" for reply in replies):
            self.close()  # the next call looks for the primary again
        return replies

    @contextmanager
    def _closed_on_failure(self, connection: DeadlineCalls) -> Iterator[None]:
        try:
            yield
        except BaseException:
            connection.disconnect()
            self.close()  # the idle connections may be dead too, and no other call should have to find out
            raise

    def _take(self) -> DeadlineCalls | None:
        if os.getpid() != self._pid:  # a fork that ran no hooks
            check_process()
            self._pid = os.getpid()
        while (connection := self._pop()) is not None and not connection.socket.is_quiet():
            connection.disconnect()
        return connection

    def _pop(self) -> DeadlineCalls | None:
        try:
            return self._idle.pop()
        except IndexError:  # a check before would race with other threads
            return None

    def close(self) -> None:
        """Close the idle connections. Those in use come back to the pool."""
        while (connection := self._pop()) is not None:
            connection.disconnect()

    retire = close


def blocking_transport(clock: ThreadClock) -> Transport:
    return Transport(clock.time, nullcontext, nullcontext, partial(connect, clock), RedisConnectionPool)
