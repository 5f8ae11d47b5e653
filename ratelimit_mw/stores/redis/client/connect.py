"""Open connections: resolve the name of a server, connect, log in. Each step has a bounded time.

Certificates are files, and a credential provider may ask a cloud service. Neither may block an event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from redis.asyncio import SSLConnection
from redis.credentials import CredentialProvider

from ....errors import ConfigError
from ... import sockets
from ...background import run_once
from ...budget import LoopClock, ThreadClock
from ...dns import ResolvedAddress, resolve
from ..address import Address


def open_socket(address: Address, host: str, port: int, deadline: float, clock: ThreadClock) -> socket.socket:
    """Return a connected socket, encrypted if the address asks for it."""
    return sockets.open_socket(_resolve(address, host, port), address.tls, host, deadline, clock)


async def open_stream(
    address: Address, host: str, port: int, deadline: float, clock: LoopClock, protocol: asyncio.Protocol
) -> asyncio.Transport:
    """Return the same for an event loop: the transport of ``protocol``."""
    return await sockets.open_stream(_resolve(address, host, port), address.tls, host, deadline, clock, protocol)


def _resolve(address: Address, host: str, port: int) -> Future[list[ResolvedAddress]]:
    if not address.path:
        return resolve(host, port)
    local: Future[list[ResolvedAddress]] = Future()
    local.set_result([ResolvedAddress(socket.AF_UNIX, address.path)])
    return local


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for redis-py's ``ssl_*`` options."""
    checks_hostname = options.get("ssl_check_hostname", True) and options.get("ssl_cert_reqs") != "none"
    try:
        context: ssl.SSLContext = SSLConnection(**{**options, "ssl_check_hostname": checks_hostname}).ssl_context.get()
    except TypeError as error:
        raise ConfigError(f"this version of redis-py does not know all TLS options: {error}") from None
    except (OSError, ValueError) as error:
        files = ", ".join(
            f"{name}={value!r}" for name, value in options.items() if name.endswith(("s", "file", "path"))
        )
        raise ConfigError(f"cannot load the TLS options {files}: {error}. Expected files in PEM format") from None
    return context


def new_connection(
    tcp: Any, unix: Any, address: Address, host: str, port: int, deadline: float, clock: ThreadClock | LoopClock
) -> Any:
    """Return a connection of one of two classes to a server of an address. ``open_arguments`` opens its socket."""
    login: dict[str, Any] = {"username": address.username, "password": address.password}
    if address.credential_provider is not None:
        login = {"credential_provider": BoundedCredentials(address.credential_provider, deadline, clock)}
    end = {"path": address.path} if address.path else {"host": host, "port": port}
    connection = (unix if address.path else tcp)(**end, **address.options, **login)
    # Leave out CLIENT SETINFO: two round trips of each connect, which the budget of a call may not have.
    connection.driver_info = connection.lib_name = connection.lib_version = None  # of newer and older redis-py
    connection.open_arguments = (address, host, port, deadline, clock)
    return connection


class BoundedCredentials(CredentialProvider):
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
