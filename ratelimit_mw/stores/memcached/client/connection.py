"""Blocking connections: a thread takes one for each server and puts it back. No command is sent twice."""

import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ....forksafe import check_process
from ...dns import resolve
from .protocol import KeyCommands, KeyReply, LoginParser, ProtocolError, ReplyParser, RoundTrip
from .servers import MemcachedAccess, MemcachedServer

_SIZE: Final = 65_536
_MAX_IDLE: Final = 64  # idle connections per server; further threads open connections of their own


class MemcachedPool:
    """The idle connections of a process. Safe with threads. Its owner closes it in a child process."""

    def __init__(self, access: MemcachedAccess) -> None:
        self._access = access
        self._idle: dict[MemcachedServer, list[socket.socket]] = defaultdict(list)

    def exchange(self, requests: Sequence[KeyCommands], due: float) -> list[KeyReply]:
        """Send to all servers, then read from all. An error closes the connections in use."""
        trip = RoundTrip(requests)
        used: dict[MemcachedServer, socket.socket] = {}
        try:
            for server, payload in trip.payloads.items():
                used[server] = self._take(server, due)
                used[server].settimeout(_seconds_until(due))
                used[server].sendall(payload)
            for server, connection in used.items():
                _read(connection, trip.parsers[server], due)
        except BaseException:
            for connection in used.values():
                connection.close()
            raise
        for server, connection in used.items():
            if len(self._idle[server]) < _MAX_IDLE:
                self._idle[server].append(connection)
            else:
                connection.close()
        return trip.replies()

    def close(self) -> None:
        """Close the idle connections. In a child process this does not end the connections of the parent."""
        for connections in list(self._idle.values()):
            while connections:
                connections.pop().close()

    def _take(self, server: MemcachedServer, due: float) -> socket.socket:
        check_process()
        with suppress(IndexError):  # no connection is idle
            while not _is_usable(connection := self._idle[server].pop()):
                connection.close()
            return connection
        return _connect(server, self._access, due)


def _seconds_until(due: float) -> float:
    seconds = due - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _connect(server: MemcachedServer, access: MemcachedAccess, due: float) -> socket.socket:
    """Return a connection to the first address of the server that accepts one."""
    problem: OSError = OSError("the name has no address")
    for resolved in resolve(*server).result(_seconds_until(due)):
        connection = socket.socket(resolved.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_seconds_until(due))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect(resolved.end)
            if access.tls is not None:
                connection.settimeout(_seconds_until(due))
                connection = access.tls.wrap_socket(connection, server_hostname=server.host)
            if access.login:
                connection.sendall(access.login)
                _read(connection, LoginParser(server), due)
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                raise
            problem = error
    raise ConnectionError(f"cannot connect to {server}: {problem}") from problem


def _is_usable(connection: socket.socket) -> bool:
    """Whether an idle connection is open, and the server has sent nothing on it."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except OSError as error:
        return isinstance(error, (BlockingIOError, ssl.SSLWantReadError))
    return False


def _read(connection: socket.socket, parser: ReplyParser, due: float) -> None:
    is_complete = False
    while not is_complete:
        connection.settimeout(_seconds_until(due))
        data = connection.recv(_SIZE)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        is_complete = parser.feed(data)
    if parser.rest:
        raise ProtocolError("more data than requested")
