"""Connections to the servers, for threads or for one event loop. No command is sent twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from ...budget import LoopClock, ThreadClock
from ...wire import (
    BlockingChannel,
    BlockingConnection,
    Channel,
    LoopChannel,
    LoopConnection,
    Place,
    open_socket,
    open_stream,
)
from .protocol import STORED, KeyCommands, KeyReply, ProtocolError, ReplyReader, RoundTrip
from .servers import MemcachedAccess, MemcachedServer


class MemcachedConnections:
    """A channel to each server. With the clock of threads, its coroutines block, and ``run_blocking`` runs them."""

    def __init__(self, access: MemcachedAccess, clock: ThreadClock | LoopClock) -> None:
        self._access = access
        self._clock = clock
        self._channels: dict[MemcachedServer, Channel] = {}

    async def exchange(self, requests: Sequence[KeyCommands], due: float) -> list[KeyReply]:
        """Send to all servers, then read from all."""
        trip, flights, failure = RoundTrip(requests), list[Awaitable[list[Any]]](), None
        received: dict[MemcachedServer, Sequence[Any]] = {}
        try:
            for server in trip.groups:
                flights.append(await self.channel(server).send(*trip.payload(server), due))
        except Exception as error:
            failure = error
        for server, flight in zip(trip.groups, flights, strict=False):
            try:
                received[server] = await flight
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return trip.replies(received)

    async def stats(self, server: MemcachedServer, due: float) -> dict[str, str]:
        """Return the reply of a server to ``stats``, over a connection of its own."""
        channel = self._new_channel(server)
        try:
            (values,) = await (await channel.send(b"stats\r\n", 1, due))
        except ProtocolError as error:
            raise ConnectionError("it rejects the command stats") from error
        finally:
            channel.close()
        return {name.decode("utf-8", "replace"): text for name, text in values.items()}

    def close(self) -> None:
        """Close the idle connections, and those in use when their calls end."""
        for channel in list(self._channels.values()):
            channel.close()

    def channel(self, server: MemcachedServer) -> Channel:
        if (channel := self._channels.get(server)) is None:  # another thread may have opened one
            channel = self._channels.setdefault(server, self._new_channel(server))
        return channel

    def _new_channel(self, server: MemcachedServer) -> Channel:
        if isinstance(self._clock, ThreadClock):
            return BlockingChannel(partial(self._connect, server, self._clock), self._clock)
        return LoopChannel(partial(self._aconnect, server, self._clock), self._clock)

    async def _connect(self, server: MemcachedServer, clock: ThreadClock, due: float) -> BlockingConnection:
        opened = open_socket(self._place(server), due, clock)
        connection = BlockingConnection(opened, ReplyReader(), opened.close)

        async def log_in(frame: bytes) -> list[Any]:
            connection.send(frame, due)
            return connection.receive(1)

        await self._log_in(server, log_in, connection.close)
        return connection

    async def _aconnect(self, server: MemcachedServer, clock: LoopClock, due: float) -> LoopConnection:
        connection = LoopConnection(ReplyReader(), clock)
        await open_stream(self._place(server), due, clock, connection)
        await self._log_in(server, lambda frame: connection.send(frame, 1, due), connection.close)
        return connection

    def _place(self, server: MemcachedServer) -> Place:
        return Place(server.host, server.port, self._access.tls, server.path)

    async def _log_in(
        self, server: MemcachedServer, send: Callable[[bytes], Awaitable[list[Any]]], close: Callable[[], Any]
    ) -> None:
        """The error shows no text of the server, which may repeat the password."""
        try:
            if self._access.login and await send(self._access.login) != [STORED]:
                raise ProtocolError
        except BaseException as error:
            close()
            if isinstance(error, ProtocolError):
                raise ProtocolError(f"{server} rejected the user name or the password") from None
            raise
