"""Connections to one server for threads. redis-py makes them and logs in; calls are made here, on their sockets.

redis-py's clients would send again, wait for longer than a call may take, and cost a third more. A line is used by one
call at a time, and none is used again after a call on it has failed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from hiredis import Reader, ReplyError, pack_command

from .address import Address
from .problems import Command, is_demoted

__all__ = ["Line", "Lines", "connected"]

_SHORTEST: Final = 0.001  # seconds: a timeout of 0 would mean something else
_CHUNK: Final = 65_536
_MORE: Final = object()


def left(deadline: float) -> float:
    """Seconds until a deadline of the monotonic clock."""
    return max(_SHORTEST, deadline - time.monotonic())


class _Timed:
    """A connection of redis-py that is made, step by step, by one deadline."""

    deadline: float
    socket_timeout: Any
    socket_connect_timeout: Any
    _sock: Any

    def connect_by(self, deadline: float) -> None:
        self.deadline = deadline
        self.socket_timeout = self.socket_connect_timeout = left(deadline)
        self.connect()  # type: ignore[attr-defined]

    def read_response(self, *args: Any, **options: Any) -> Any:
        self._sock.settimeout(left(self.deadline))
        return super().read_response(*args, **options)  # type: ignore[misc]


class _Tcp(_Timed, redis.Connection):
    pass


class _Tls(_Timed, redis.SSLConnection):
    pass


class _Unix(_Timed, redis.UnixDomainSocketConnection):
    pass


_KINDS: Final = {"tcp": _Tcp, "tls": _Tls, "unix": _Unix}


def connected(address: Address, host: str, port: int, deadline: float) -> Line:
    """A new line to one of the servers at an address."""
    kind, options = address.options(host, port)
    connection: Any = _KINDS[kind](**options)
    try:
        connection.connect_by(deadline)
    except BaseException:
        connection.disconnect()
        raise
    return Line(connection)


class Line:
    """A connection that is logged in."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._reader = Reader(notEnoughData=_MORE)

    def call(self, command: Command, deadline: float) -> Any:
        """The reply; raises ``ReplyError`` for an error that the server has said."""
        self._socket.settimeout(left(deadline))
        self._socket.sendall(pack_command(command))
        while (reply := self._reader.gets()) is _MORE:
            self._socket.settimeout(left(deadline))
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def is_quiet(self) -> bool:
        """Whether it still stands with nothing on it: a server that went away has closed it."""
        self._socket.settimeout(0)
        try:
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)  # below TLS, which knows no peeking
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self._connection.disconnect()


class Lines:
    """The lines to one server that no call is using, the last one used first."""

    def __init__(self, connect: Callable[[float], Line]) -> None:
        self._connect = connect
        self._idle: list[Line] = []
        self._pid = os.getpid()

    def call(self, *commands: Command, deadline: float) -> Any:
        """The reply to the last of the commands, which go one after another over one line."""
        line, reply = self._take(deadline), None
        try:
            for command in commands:
                reply = line.call(command, deadline)
        except ReplyError as error:
            self._keep(line)
            if is_demoted(error):
                self.close()  # ask anew who is the primary
            raise
        except BaseException:
            line.close()
            raise
        self._keep(line)
        return reply

    def _take(self, deadline: float) -> Line:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()  # these are the parent's
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if line.is_quiet():
                return line
            line.close()
        return self._connect(deadline)

    def _keep(self, line: Line) -> None:
        self._idle.append(line)

    def close(self) -> None:
        """Close what is idle. The lines of calls that are out come back and stay."""
        while self._idle:
            self._idle.pop().close()
