"""Connections to the servers, for threads or for one event loop. No command is sent twice."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from ...ways import Way
from ...wire import Channel, Place, open_connection
from .protocol import STORED, KeyCommands, KeyReply, ProtocolError, ReplyReader, RoundTrip
from .servers import MemcachedAccess, MemcachedServer


class MemcachedConnections:
    """A channel to each server."""

    def __init__(self, access: MemcachedAccess, way: Way) -> None:
        self._access = access
        self._way = way
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
        connection = await self._connect(server, due)
        try:
            (values,) = await connection.send(b"stats\r\n", 1, due)
        except ProtocolError as error:
            raise ConnectionError("it rejects the command stats") from error
        finally:
            connection.close()
        return {name.decode("utf-8", "replace"): text for name, text in values.items()}

    def close(self) -> None:
        """Close the idle connections, and those in use when their calls end."""
        for channel in list(self._channels.values()):
            channel.close()

    def channel(self, server: MemcachedServer) -> Channel:
        if (channel := self._channels.get(server)) is None:  # another thread may have opened one
            opened = self._way.channel(partial(self._connect, server))
            channel = self._channels.setdefault(server, opened)
        return channel

    async def _connect(self, server: MemcachedServer, due: float) -> Any:
        """Connect and log in. The error shows no text of the server, which may repeat the password."""
        place = Place(server.host, server.port, self._access.tls, server.path)
        connection = await open_connection(self._way, place, ReplyReader(), due)
        try:
            if self._access.login and await connection.send(self._access.login, 1, due) != [STORED]:
                raise ProtocolError
        except BaseException as error:
            connection.close()
            if isinstance(error, ProtocolError):
                raise ProtocolError(f"{server} rejected the user name or the password") from None
            raise
        return connection
