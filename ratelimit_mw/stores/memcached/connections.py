"""Connections to Memcached servers, for threads or for one event loop. No command is sent twice."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from ..connecting import open_connection
from ..drivers import Channel, Driver
from ..servers import Server, TlsFiles
from .protocol import ReplyReader, StoredValue, unexpected


class Rendezvous:
    """A key belongs to the server with the highest hash of both, even while that server is unreachable."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)
        self._seeds = [(blake2b(str(server).encode(), digest_size=32).digest(), server) for server in servers]

    def server_of(self, token: bytes) -> Server:
        if len(self.servers) == 1:
            return self.servers[0]
        return max((blake2b(token, digest_size=8, key=seed).digest(), server) for seed, server in self._seeds)[1]


class KeyCommands(NamedTuple):
    """``commands`` for one key, with a line of reply each. The reads of ``names`` after them see their writes."""

    server: Server
    commands: Sequence[bytes] = ()
    names: Sequence[bytes] = ()


class MemcachedConnections:
    """A channel to each server."""

    def __init__(self, tls: TlsFiles | None, driver: Driver) -> None:
        self._tls, self._driver = tls, driver
        self._channels: dict[Server, Channel] = {}

    async def exchange(
        self, requests: Sequence[KeyCommands], deadline: float
    ) -> tuple[list[list[bytes]], Mapping[bytes, StoredValue]]:
        """Send to all servers, then read from all. Return the lines of each request, and all values by their names."""
        groups: dict[Server, list[KeyCommands]] = {}
        for request in requests:
            groups.setdefault(request.server, []).append(request)
        flights, failure = list[Awaitable[list[Any]]](), None
        lines, values = dict[Server, Any](), dict[bytes, StoredValue]()
        try:
            for server, group in groups.items():
                flights.append(await self.channel(server).send(*_payload(group), deadline))
        except Exception as error:
            failure = error
        for (server, group), flight in zip(groups.items(), flights, strict=False):
            try:
                replies = await flight
                values |= _values_in(replies) if any(each.names for each in group) else {}
                lines[server] = iter(replies)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return [[next(lines[each.server]) for _ in each.commands] for each in requests], values

    async def stats(self, server: Server, deadline: float) -> dict[str, str]:
        """Return the reply of a server to ``stats``."""
        (values,) = await (await self.channel(server).send(b"stats\r\n", 1, deadline))
        return {name.decode("utf-8", "replace"): text for name, text in values.items()}

    def close(self) -> None:
        """Close the idle connections."""
        for channel in list(self._channels.values()):
            channel.close()

    def channel(self, server: Server) -> Channel:
        if (channel := self._channels.get(server)) is None:  # another thread may have opened one
            opened = self._driver.channel(partial(self._connect, server))
            channel = self._channels.setdefault(server, opened)
        return channel

    async def _connect(self, server: Server, deadline: float) -> Any:
        return await open_connection(self._driver, server, self._tls, ReplyReader(), deadline)


def _payload(group: Sequence[KeyCommands]) -> tuple[bytes, int]:
    """Return what to send to a server, and the number of its replies: a line for each command, and the values."""
    commands = [line for each in group for line in each.commands]
    names = [name for each in group for name in each.names]
    reads = [b"gets %b\r\n" % b" ".join(names)] if names else []
    return b"".join(commands + reads), len(commands) + len(reads)


def _values_in(replies: list[Any]) -> dict[bytes, StoredValue]:
    """Take the values, which are the last reply."""
    if not isinstance(values := replies.pop(), dict):
        raise unexpected(values)
    return values
