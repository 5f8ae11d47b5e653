"""Connections to one server for threads: made by redis-py, kept here, each used by one call at a time.

redis-py's clients would send again, and wait for longer than a call may take; so only its connections are used. What
goes wrong leaves as redis-py raised it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from .address import Address
from .message import Message

__all__ = ["Line", "Lines", "connected", "evaluate"]

_SHORTEST: Final = 0.001  # seconds: a timeout of 0 would mean something else

Line = Any
"""A connection of redis-py, ``_Timed``."""


class _Timed:
    """A connection all of whose steps, those of logging in too, end by one deadline."""

    ends_at: float
    socket_timeout: Any
    socket_connect_timeout: Any
    _sock: Any

    def due(self, deadline: float) -> None:
        """From now on nothing waits beyond ``deadline``, in seconds of the monotonic clock."""
        self.ends_at = deadline
        self.socket_timeout = self.socket_connect_timeout = self._left()

    def read_response(self, *args: Any, **options: Any) -> Any:
        if self._sock is not None:
            self._sock.settimeout(self._left())
        return super().read_response(*args, **options)  # type: ignore[misc]

    def _left(self) -> float:
        return max(_SHORTEST, self.ends_at - time.monotonic())


class _Tcp(_Timed, redis.Connection):
    pass


class _Tls(_Timed, redis.SSLConnection):
    pass


class _Unix(_Timed, redis.UnixDomainSocketConnection):
    pass


def connected(address: Address, host: str, port: int, deadline: float) -> Line:
    """A new connection to one of the servers at an address, logged in."""
    kind, options = address.options(host, port)
    line = {"tcp": _Tcp, "tls": _Tls, "unix": _Unix}[kind](**options)
    line.due(deadline)
    try:
        line.connect()
    except BaseException:
        line.disconnect()
        raise
    return line


class Lines:
    """The connections to one server that no call is using, the last one used first."""

    def __init__(self, connect: Callable[[float], Line]) -> None:
        self._connect = connect
        self._idle: list[Line] = []
        self._pid = os.getpid()

    def send(self, *commands: tuple[Any, ...], deadline: float) -> Any:
        """The reply to the last of the commands, which go one after another over one connection."""
        line, reply = self._take(deadline), None
        try:
            for command in commands:
                line.send_packed_command(line.pack_command(*command), check_health=False)
                reply = line.read_response()
        except ReadOnlyError:  # it has become a replica; ask anew who is the primary
            line.disconnect()
            self.close()
            raise
        except ResponseError:
            self._idle.append(line)
            raise
        except BaseException:
            line.disconnect()
            raise
        self._idle.append(line)
        return reply

    def _take(self, deadline: float) -> Line:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()  # these are the parent's
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            line.due(deadline)
            if _is_open(line):
                return line
            line.disconnect()
        return self._connect(deadline)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()


def _is_open(line: Line) -> bool:
    """Whether a connection still stands and nothing is left on it: a server that went has closed it."""
    try:
        return not line.can_read(0)
    except RedisError:
        return False


def evaluate(send: Callable[[tuple[Any, ...]], Any], message: Message) -> Any:
    """The reply to a message; a server that does not know the script is told it, with the same call once more."""
    script, arguments = message.script, message.arguments
    try:
        return send((b"EVALSHA", script.sha, *arguments))
    except NoScriptError:
        return send((b"EVAL", script.text, *arguments))
