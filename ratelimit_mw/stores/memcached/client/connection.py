"""Blocking connections: a thread takes one for each server and puts it back. No command is sent twice."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ....forksafe import check_process
from ...dns import ResolvedAddress, resolve
from .protocol import LoginParser, ProtocolError, ReplyParser
from .servers import MemcachedAccess, MemcachedServer

_SIZE: Final = 65_536
_MAX_IDLE: Final = 64  # idle connections per server; further threads open connections of their own


class MemcachedPool:
    """The idle connections of a process. Safe with threads. Its owner closes it in a child process."""

    def __init__(self, access: MemcachedAccess) -> None:
        self._access = access
        self._idle: dict[MemcachedServer, list[socket.socket]] = {}

    def exchange(
        self, payloads: Mapping[MemcachedServer, bytes], parsers: Mapping[MemcachedServer, ReplyParser], due: float
    ) -> None:
        """Send to all servers, then read from all. An error closes the connections in use."""
        used: dict[MemcachedServer, socket.socket] = {}
        try:
            for server, payload in payloads.items():
                used[server] = self._take(server, due)
                used[server].sendall(payload)
            for server, connection in used.items():
                _read(connection, parsers[server], due)
        except BaseException:
            for connection in used.values():
                connection.close()
            raise
        for server, connection in used.items():
            self._put_back(server, connection)

    def close(self) -> None:
        """Close the idle connections. In a child process this does not end the connections of the parent."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _take(self, server: MemcachedServer, due: float) -> socket.socket:
        check_process()
        idle = self._idle.get(server, [])
        with suppress(IndexError):  # another thread may take the last one
            while idle:
                connection = idle.pop()
                if _is_usable(connection):
                    connection.settimeout(_left(due))
                    return connection
                connection.close()
        return _connect(server, self._access, due)

    def _put_back(self, server: MemcachedServer, connection: socket.socket) -> None:
        idle = self._idle.setdefault(server, [])
        if len(idle) < _MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()


def _left(due: float) -> float:
    left = due - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connect(server: MemcachedServer, access: MemcachedAccess, due: float) -> socket.socket:
    """Return a connection to the first address of the server that accepts one."""
    problem: OSError = OSError("the name has no address")
    for resolved in resolve(*server).result(_left(due)):
        try:
            return _open(resolved, server, access, due)
        except TimeoutError:
            raise
        except OSError as error:
            problem = error
    raise ConnectionError(f"cannot connect to {server}: {problem}") from problem


def _open(resolved: ResolvedAddress, server: MemcachedServer, access: MemcachedAccess, due: float) -> socket.socket:
    connection = socket.socket(resolved.family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(due))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(resolved.end)
        if access.tls is not None:
            connection.settimeout(_left(due))
            connection = access.tls.wrap_socket(connection, server_hostname=server.host)
        if access.login:
            connection.sendall(access.login)
            _read(connection, LoginParser(server), due)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_usable(connection: socket.socket) -> bool:
    """Whether an idle connection is open, and the server has sent nothing on it."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False


def _read(connection: socket.socket, parser: ReplyParser, due: float) -> None:
    is_complete = False
    while not is_complete:
        connection.settimeout(_left(due))
        data = connection.recv(_SIZE)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        is_complete = parser.feed(data)
    if parser.rest:
        raise ProtocolError("more data than requested")
