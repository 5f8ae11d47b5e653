"""Connections to a server of Redis: redis-py logs in on a socket of ours, and then leaves it to ``wire``.

Certificates are files, and a credential provider may ask a cloud service. Neither may block an event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import redis
import redis.asyncio
from hiredis import Reader
from redis.asyncio import SSLConnection
from redis.credentials import CredentialProvider

from ...errors import ConfigError
from ..background import run_once
from ..budget import LoopClock, ThreadClock
from ..wire import (
    MORE,
    BlockingChannel,
    BlockingConnection,
    LoopChannel,
    LoopConnection,
    Place,
    open_socket,
    open_stream,
)
from .address import Address
from .router import Transport


class BlockingLogin:
    """Gives a connection of redis-py its socket."""

    socket: Any

    def _connect(self) -> Any:
        return self.socket


class BlockingTcpLogin(BlockingLogin, redis.Connection):
    """Over TCP, with or without TLS."""


class BlockingUnixLogin(BlockingLogin, redis.UnixDomainSocketConnection):
    """Over a Unix domain socket."""


class StreamLogin:
    """Gives an async connection of redis-py its stream."""

    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    async def _connect(self) -> None:
        self._reader: Any
        self._writer: Any
        self._reader, self._writer = self.stream

    def abort(self) -> None:
        self.stream[1].transport.abort()
        self._reader = self._writer = None


class TcpLogin(StreamLogin, redis.asyncio.Connection):
    """Over TCP, with or without TLS."""


class UnixLogin(StreamLogin, redis.asyncio.UnixDomainSocketConnection):
    """Over a Unix domain socket."""


def blocking_transport(clock: ThreadClock) -> Transport:
    """Return the transport of threads."""

    async def connect(address: Address, host: str, port: int, deadline: float) -> BlockingConnection:
        login = _new_login(BlockingTcpLogin, BlockingUnixLogin, address, host, port, deadline, clock)
        login.socket = opened = open_socket(Place(host, port, address.tls, address.path), deadline, clock)
        try:
            login.connect()
        except BaseException:
            opened.close()
            raise
        return BlockingConnection(opened, _codec(), login.disconnect)

    return Transport(clock, nullcontext, connect, lambda connect: BlockingChannel(connect, clock))


def loop_transport(clock: LoopClock) -> Transport:
    """Return the transport of the running event loop."""

    async def connect(address: Address, host: str, port: int, deadline: float) -> LoopConnection:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        login = _new_login(TcpLogin, UnixLogin, address, host, port, deadline, clock)
        transport = await open_stream(Place(host, port, address.tls, address.path), deadline, clock, protocol)
        login.stream = reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        try:
            await clock.within(login.connect(), deadline)
        except BaseException:
            login.abort()
            raise
        connection = LoopConnection(_codec(), clock)
        connection.connection_made(transport, login.abort)
        return connection

    return Transport(clock, asyncio.Lock, connect, lambda connect: LoopChannel(connect, clock))


def _codec() -> Reader:
    return Reader(replyError=redis.ResponseError, notEnoughData=MORE)


def _new_login(
    tcp: Any, unix: Any, address: Address, host: str, port: int, deadline: float, clock: ThreadClock | LoopClock
) -> Any:
    """Return a connection of one of two classes, which logs in to a server of an address."""
    login: dict[str, Any] = {"username": address.username, "password": address.password}
    if address.credential_provider is not None:
        login = {"credential_provider": _BoundedCredentials(address.credential_provider, deadline, clock)}
    end = {"path": address.path} if address.path else {"host": host, "port": port}
    connection = (unix if address.path else tcp)(**end, **address.options, **login)
    # Leave out CLIENT SETINFO: two round trips of each connect, which the budget of a call may not have.
    connection.driver_info = connection.lib_name = connection.lib_version = None  # of newer and older redis-py
    return connection


class _BoundedCredentials(CredentialProvider):
    """Asks a provider in a thread, and waits until the deadline. A provider that caches then serves the next call."""

    def __init__(self, provider: CredentialProvider, deadline: float, clock: Any) -> None:
        self._provider = provider
        self._deadline = deadline
        self._clock = clock

    def get_credentials(self) -> Any:
        result = run_once(("credentials", id(self._provider)), self._provider.get_credentials)
        return self._clock.result(result, self._deadline)

    async def get_credentials_async(self) -> Any:
        if type(self._provider).get_credentials_async is not CredentialProvider.get_credentials_async:
            return await self._provider.get_credentials_async()
        result = run_once(("credentials", id(self._provider)), self._provider.get_credentials)
        return await asyncio.wrap_future(result)


_TLS_FILES: Final = ("s", "file", "path")


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for redis-py's ``ssl_*`` options."""
    checks_hostname = options.get("ssl_check_hostname", True) and options.get("ssl_cert_reqs") != "none"
    try:
        context: ssl.SSLContext = SSLConnection(**{**options, "ssl_check_hostname": checks_hostname}).ssl_context.get()
    except TypeError as error:
        raise ConfigError(f"this version of redis-py does not know all TLS options: {error}") from None
    except (OSError, ValueError) as error:
        files = ", ".join(f"{name}={value!r}" for name, value in options.items() if name.endswith(_TLS_FILES))
        raise ConfigError(f"cannot load the TLS options {files}: {error}. Expected files in PEM format") from None
    return context
