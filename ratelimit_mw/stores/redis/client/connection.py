"""Blocking connections to one server. redis-py logs in, selects and parses; each call has a deadline.

A connection serves one call at a time, and no call after one that failed on it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from hiredis import pack_command

from ....forksafe import check_process, run_in_child
from ..address import Address
from .connect import open_socket, without_library_name
from .credentials import credentials
from .errors import Command, is_read_only

_SHORTEST: Final = 0.001  # seconds: a timeout of 0 makes a socket non-blocking


class DeadlineSocket:
    """A socket of which every operation ends by ``deadline``, a time of the monotonic clock."""

    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self.deadline = deadline
        self._socket = plain
        self._settimeout = plain.settimeout
        self.shutdown, self.close, self.fileno = plain.shutdown, plain.close, plain.fileno

    def sendall(self, data: bytes) -> None:
        self._settimeout(max(_SHORTEST, self.deadline - time.monotonic()))
        self._socket.sendall(data)

    def recv_into(self, buffer: bytearray) -> int:
        self._settimeout(max(_SHORTEST, self.deadline - time.monotonic()))
        return self._socket.recv_into(buffer)

    def is_quiet(self) -> bool:
        """Whether the connection is open and has nothing to read."""
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

    host: str
    port: int
    send_packed_command: Callable[..., None]
    read_response: Callable[[], Any]
    disconnect: Callable[[], None]

    def prepare(self, address: Address, deadline: float) -> None:
        self._address = address
        self._deadline = deadline

    def _connect(self) -> DeadlineSocket:
        host, port = (self.host, self.port) if self._address.hosts else ("", 0)
        self.socket = DeadlineSocket(open_socket(self._address, host, port, self._deadline), self._deadline)
        return self.socket

    def call(self, command: Command, deadline: float) -> Any:
        """The reply. Raises ``ResponseError`` for an error reply."""
        self.socket.deadline = deadline
        self.send_packed_command((pack_command(command),), check_health=False)
        return self.read_response()


class RedisConnection(DeadlineCalls, redis.Connection):  # type: ignore[misc]
    """A connection over TCP, with or without TLS."""


class UnixConnection(DeadlineCalls, redis.UnixDomainSocketConnection):  # type: ignore[misc]
    """A connection over a Unix domain socket."""


def connect(address: Address, host: str, port: int, deadline: float) -> DeadlineCalls:
    """A new connection, logged in, to one of the servers of an address."""
    options: dict[str, Any] = {**address.options, **credentials(address, deadline)}
    where = {"path": address.path} if address.path else {"host": host, "port": port}
    kind: Any = UnixConnection if address.path else RedisConnection
    connection = without_library_name(kind(**where, **options))
    connection.prepare(address, deadline)
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return connection  # type: ignore[no-any-return]


class RedisConnectionPool:
    """The idle connections to one server, last used first. It has no limit, so no thread waits for another one."""

    def __init__(self, connect: Callable[[float], DeadlineCalls]) -> None:
        self._connect = connect
        self._idle: list[DeadlineCalls] = []
        self._pid = os.getpid()
        run_in_child(self, RedisConnectionPool.close)  # a child must not use the connections of its parent

    def call(self, *commands: Command, deadline: float) -> Any:
        """The reply to the last of the commands, which go over one connection."""
        connection, reply = self._take(deadline), None
        try:
            for command in commands:
                reply = connection.call(command, deadline)
        except redis.ResponseError as error:
            self._idle.append(connection)
            if is_read_only(error):
                self.close()  # the next call looks for the primary again
            raise
        except BaseException:
            connection.disconnect()
            self.close()  # the idle connections may be dead too, and no other call should have to find out
            raise
        self._idle.append(connection)
        return reply

    def _take(self, deadline: float) -> DeadlineCalls:
        if os.getpid() != self._pid:  # a fork that ran no hooks
            check_process()
            self._pid = os.getpid()
        while (connection := self._last()) is not None:
            if connection.socket.is_quiet():
                return connection
            connection.disconnect()
        return self._connect(deadline)

    def _last(self) -> DeadlineCalls | None:
        try:
            return self._idle.pop()
        except IndexError:  # a check before would race with other threads
            return None

    def close(self) -> None:
        """Close the idle connections. Those in use come back to the pool."""
        while (connection := self._last()) is not None:
            connection.disconnect()
