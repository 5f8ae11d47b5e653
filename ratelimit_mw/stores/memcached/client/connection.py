"""Blocking connections: a thread takes one for each server and puts it back. No command is sent twice."""

import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ....forksafe import check_process
from ...budget import ThreadClock
from ...dns import resolve
from ...sockets import open_socket
from .protocol import KeyCommands, KeyReply, LoginParser, ProtocolError, ReplyParser, RoundTrip
from .servers import MemcachedAccess, MemcachedServer, named_errors

_SIZE: Final = 65_536
_MAX_STATS: Final = 1 << 20
_MAX_IDLE: Final = 64  # idle connections per server; further threads open connections of their own


class MemcachedPool:
    """The idle connections of a process. Safe with threads. Its owner closes it in a child process."""

    def __init__(self, access: MemcachedAccess, clock: ThreadClock) -> None:
        self._access = access
        self._clock = clock
        self._idle: dict[MemcachedServer, list[socket.socket]] = defaultdict(list)
        self._closings: Counter[MemcachedServer] = Counter()

    def exchange(self, requests: Sequence[KeyCommands], due: float) -> list[KeyReply]:
        """Send to all servers, then read from all. An error closes the connections in use.

        The idle connections of a server that failed may be dead too, and no other call should have to find out.
        """
        trip = RoundTrip(requests)
        used: dict[MemcachedServer, socket.socket] = {}
        closings = self._closings.copy()
        try:
            for server, payload in trip.payloads.items():
                used[server] = self._take(server, due)
                if self._clock.time() >= due:
                    raise TimeoutError
                used[server].settimeout(self._clock.seconds_until(due))
                used[server].sendall(payload)
            for server, connection in used.items():
                self._read(connection, trip.parsers[server], due)
        except BaseException:
            for connection in used.values():
                connection.close()
            self._close_idle(server)
            raise
        for server, connection in used.items():
            if closings[server] == self._closings[server] and len(self._idle[server]) < _MAX_IDLE:
                self._idle[server].append(connection)
            else:
                connection.close()
        return trip.replies()

    def stats(self, server: MemcachedServer, due: float) -> dict[str, str]:
        """Return the reply of a server to ``stats``, over a connection of its own."""
        with self._connect(server, due) as connection:
            connection.sendall(b"stats\r\n")
            reply = b""
            while not reply.endswith(b"END\r\n"):
                connection.settimeout(self._clock.seconds_until(due))
                data = connection.recv(_SIZE)
                if not data or len(reply) > _MAX_STATS or data.startswith((b"ERROR", b"CLIENT_ERROR")):
                    raise ConnectionError("it rejects the command stats")
                reply += data
        rows = (line.decode("utf-8", "replace").split(" ", 2) for line in reply.splitlines())
        return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "STAT"}

    def close(self) -> None:
        """Close the idle connections, and those in use when their calls end.

        In a child process this does not end the connections of the parent.
        """
        for server in list(self._idle):
            self._close_idle(server)

    def _close_idle(self, server: MemcachedServer) -> None:
        self._closings[server] += 1
        with suppress(IndexError):  # another thread may take one
            while True:
                self._idle[server].pop().close()

    def _take(self, server: MemcachedServer, due: float) -> socket.socket:
        check_process()
        with suppress(IndexError):  # no connection is idle
            while not _is_usable(connection := self._idle[server].pop()):
                connection.close()
            return connection
        return self._connect(server, due)

    def _connect(self, server: MemcachedServer, due: float) -> socket.socket:
        access = self._access
        with named_errors(server):
            connection = open_socket(resolve(*server), access.tls, server.host, due, self._clock)
            try:
                if access.login:
                    connection.sendall(access.login)
                    self._read(connection, LoginParser(server), due)
            except BaseException:
                connection.close()
                raise
        return connection

    def _read(self, connection: socket.socket, parser: ReplyParser, due: float) -> None:
        def receive(seconds: float) -> bytes:
            connection.settimeout(seconds)
            return connection.recv(_SIZE)

        is_complete = False
        while not is_complete:
            data = self._clock.wait(receive, due)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            is_complete = parser.feed(data)
        if parser.rest:
            raise ProtocolError("more data than requested")


def _is_usable(connection: socket.socket) -> bool:
    """Whether an idle connection is open, and the server has sent nothing on it."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except OSError as error:
        return isinstance(error, (BlockingIOError, ssl.SSLWantReadError))
    return False
