"""Blocking connections: a thread takes one of each server it needs, and puts it back. Nothing is ever sent twice."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from ...dns import resolve
from .protocol import Replies, WireError
from .servers import Server

__all__ = ["Sockets"]

_SIZE: Final = 65_536
_MOST_IDLE: Final = 64  # connections that are kept for each server; more threads than that open their own


class Sockets:
    """The idle connections of a process. Safe under threads and after a fork."""

    def __init__(self) -> None:
        self._idle: dict[Server, list[socket.socket]] = {}
        self._process = os.getpid()

    def exchange(self, payloads: Mapping[Server, bytes], replies: Mapping[Server, Replies], due: float) -> None:
        """Send to all servers, then read from all. ``OSError`` and ``WireError`` close what was in use."""
        used: dict[Server, socket.socket] = {}
        try:
            for server, payload in payloads.items():
                used[server] = self._taken(server, due)
                used[server].sendall(payload)
            for server, connection in used.items():
                _read(connection, replies[server], due)
        except BaseException:
            for connection in used.values():
                connection.close()
            raise
        for server, connection in used.items():
            self._put_back(server, connection)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _taken(self, server: Server, due: float) -> socket.socket:
        if os.getpid() != self._process:
            # A child must not talk on its parent's connections; closing its copies does not end them.
            self._process = os.getpid()
            self.close()
        idle = self._idle.get(server, [])
        while idle:
            try:
                connection = idle.pop()
            except IndexError:
                break  # another thread was faster
            if _is_quiet(connection):
                connection.settimeout(_left(due))
                return connection
            connection.close()
        return _connected(server, due)

    def _put_back(self, server: Server, connection: socket.socket) -> None:
        idle = self._idle.setdefault(server, [])
        if len(idle) < _MOST_IDLE:
            idle.append(connection)
        else:
            connection.close()


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(server: Server, due: float) -> socket.socket:
    problem = OSError(f"no address of {server}")
    for way in resolve(*server).result(_left(due)):
        connection = socket.socket(way.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_left(due))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect(way.end)
        except OSError as error:
            connection.close()
            problem = error
        else:
            return connection
    raise problem


def _is_quiet(connection: socket.socket) -> bool:
    """Whether an idle connection is still one: not closed by the server, and nothing on it that nobody asked for."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read(connection: socket.socket, replies: Replies, due: float) -> None:
    complete = False
    while not complete:
        connection.settimeout(_left(due))
        data = connection.recv(_SIZE)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        complete = replies.feed(data)
    if replies.rest:
        raise WireError("more came back than was asked for")
