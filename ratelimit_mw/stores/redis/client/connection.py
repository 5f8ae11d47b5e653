"""Blocking connections to one server. redis-py connects and logs in; then each call has a deadline.

A connection serves one call at a time, and no call after one that failed on it. The coroutines of this file block:
they never wait for an event loop, so `run_blocking` runs them and those that call them.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, TypeVar

import redis
from hiredis import Reader

from ....forksafe import check_process, run_in_child
from ...budget import ThreadClock
from ..address import Address
from .connect import new_connection, open_socket
from .transport import Transport

T = TypeVar("T")
_MORE: Final = object()
_CHUNK: Final = 65_536


class DeadlineSocket:
    """A socket of which every operation ends by ``deadline``, a time of the clock."""

    def __init__(self, plain: socket.socket, clock: ThreadClock, deadline: float) -> None:
        self.deadline = deadline
        self._clock = clock
        self._socket = plain
        self._seconds = 0.0
        self._readable = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._readable.register(plain.fileno(), selectors.EVENT_READ)
        self.shutdown, self.close, self.fileno = plain.shutdown, plain.close, plain.fileno

    def sendall(self, data: bytes) -> None:
        sent = self._socket.send(data)  # all, unless the buffer of the system is full
        while sent < len(data):
            sent += self._within(self._socket.send, data[sent:])

    def recv_into(self, buffer: bytearray) -> int:
        """Read what redis-py waits for in a login."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        return self._within(self._socket.recv, size)

    def _within(self, call: Callable[[Any], T], argument: Any) -> T:
        def attempt(seconds: float) -> T:
            if seconds != self._seconds:  # to set it is a system call
                self._seconds = seconds
                self._socket.settimeout(seconds)
            return call(argument)

        return self._clock.wait(attempt, self.deadline)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and has nothing to read."""
        return not self._readable.select(0)


class BlockingLogin:
    """Adds a bounded connect to a connection of redis-py."""

    open_arguments: tuple[Address, str, int, float, ThreadClock]
    connect: Callable[[], None]
    disconnect: Callable[[], None]

    def _connect(self) -> DeadlineSocket:
        *_, deadline, clock = self.open_arguments
        self.socket = DeadlineSocket(open_socket(*self.open_arguments), clock, deadline)
        return self.socket


class BlockingTcpLogin(BlockingLogin, redis.Connection):
    """Over TCP, with or without TLS."""


class BlockingUnixLogin(BlockingLogin, redis.UnixDomainSocketConnection):
    """Over a Unix domain socket."""


async def connect(clock: ThreadClock, address: Address, host: str, port: int, deadline: float) -> RedisConnection:
    """Return a new connection, logged in, to one of the servers of an address."""
    login = new_connection(BlockingTcpLogin, BlockingUnixLogin, address, host, port, deadline, clock)
    try:
        login.connect()
    except BaseException:
        login.disconnect()
        raise
    return RedisConnection(login)


class RedisConnection:
    """The connection of a login, for one call at a time. redis-py would take 10 us more for each call."""

    def __init__(self, login: BlockingLogin) -> None:
        self.close = login.disconnect
        self._socket = login.socket
        self.is_quiet = self._socket.is_quiet
        self._parser = Reader(replyError=redis.ResponseError, notEnoughData=_MORE)

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.deadline = deadline
        self._socket.sendall(data)

    def receive(self, count: int) -> list[Any]:
        """Return the reply to each command, or the error that the server replied."""
        feed, gets = self._parser.feed, self._parser.gets
        replies: list[Any] = []
        while len(replies) < count:
            if not (data := self._socket.recv(_CHUNK)):
                raise ConnectionError("the server closed the connection")
            feed(data)
            while (reply := gets()) is not _MORE:
                replies.append(reply)
        if len(replies) > count:
            raise ConnectionError("the server sent a reply without a command")
        return replies


class RedisConnectionPool:
    """The idle connections to one server, last used first. It has no limit, so no thread waits for another one."""

    def __init__(self, connect: Callable[[float], Awaitable[RedisConnection]]) -> None:
        self._connect = connect
        self._idle: list[RedisConnection] = []
        self._closings = 0
        self._pid = os.getpid()
        run_in_child(self, RedisConnectionPool.close)  # a child must not use the connections of its parent

    async def send(self, frames: Sequence[bytes], deadline: float) -> Callable[[], Awaitable[list[Any]]]:
        """Send commands over one connection, and return the call that reads their replies."""
        closings = self._closings
        connection = self._take() or await self._connect(deadline)
        try:
            connection.send(b"".join(frames), deadline)
        except BaseException:
            self._drop(connection)
            raise
        return partial(self._receive, connection, len(frames), closings)

    async def _receive(self, connection: RedisConnection, count: int, closings: int) -> list[Any]:
        try:
            replies = connection.receive(count)
        except BaseException:
            self._drop(connection)
            raise
        if closings == self._closings:
            self._idle.append(connection)
        else:
            connection.close()
        return replies

    def _drop(self, connection: RedisConnection) -> None:
        """Close a connection that failed. The idle ones may be dead too, and no other call should have to find out."""
        connection.close()
        self.close()

    def _take(self) -> RedisConnection | None:
        if os.getpid() != self._pid:  # a fork that ran no hooks
            check_process()
            self._pid = os.getpid()
        while (connection := self._pop()) is not None and not connection.is_quiet():
            connection.close()
        return connection

    def _pop(self) -> RedisConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # a check before would race with other threads
            return None

    def close(self) -> None:
        """Close the idle connections, and those in use when their calls end."""
        self._closings += 1
        while (connection := self._pop()) is not None:
            connection.close()

    retire = close


def blocking_transport(clock: ThreadClock) -> Transport:
    return Transport(clock.time, nullcontext, nullcontext, partial(connect, clock), RedisConnectionPool)
