"""Connections to one server for threads. A line is used by one call at a time, and never after a call on it failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final

from hiredis import Reader, ReplyError, pack_command

from ..address import Address
from .connect import left, reached
from .errors import Command, discreet, is_demoted

__all__ = ["Line", "Lines", "connected"]

_CHUNK: Final = 65_536
_MORE: Final = object()


def connected(address: Address, host: str, port: int, deadline: float) -> Line:
    """A new line, logged in, to one of the servers at an address."""
    line = Line(reached(address, host, port, deadline))
    try:
        for command in address.login:
            line.call(command, deadline)
    except BaseException:
        line.close()
        raise
    return line


class Line:
    """One connection."""

    def __init__(self, way: socket.socket) -> None:
        self._socket = way
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
            raise discreet(reply)
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
        self._socket.close()

    __del__ = close  # who forgets a store leaves nothing open


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
            self.close()  # those that are idle may lead to where nobody is any more: none is to be found out by a call
            raise
        self._keep(line)
        return reply

    def _take(self, deadline: float) -> Line:
        if self._pid != os.getpid():
            self.close()  # these are the parent's; it has its own end of each
            self._pid = os.getpid()
        while (line := self._last()) is not None:
            if line.is_quiet():
                return line
            line.close()
        return self._connect(deadline)

    def _last(self) -> Line | None:
        try:
            return self._idle.pop()
        except IndexError:  # asking first would not do: another thread may be faster
            return None

    def _keep(self, line: Line) -> None:
        self._idle.append(line)

    def close(self) -> None:
        """Close what is idle. The lines of calls that are out come back and stay."""
        while (line := self._last()) is not None:
            line.close()
