"""Open connections: resolve the name of a server, try each address, encrypt, log in. Each step has a bounded time.

Certificates are files, and a credential provider may ask a cloud service. Neither may block an event loop.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from redis.asyncio import SSLConnection
from redis.credentials import CredentialProvider

from ....errors import ConfigError
from ...background import run_once
from ...budget import LoopClock, ThreadClock
from ...dns import ResolvedAddress, resolve
from ..address import Address

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes


def open_socket(address: Address, host: str, port: int, deadline: float, clock: ThreadClock) -> socket.socket:
    """Return a connected socket, encrypted if the address asks for it."""
    addresses = clock.result(_resolve(address, host, port), deadline)
    for count, resolved in _in_turn(addresses):
        with _new_socket(resolved, count) as plain:
            clock.connect(plain, resolved.end, clock.seconds_until(deadline) / count)
            return plain if address.tls is None else clock.encrypt(plain, address.tls, host, deadline)
    raise OSError("the name has no address")


async def open_stream(
    address: Address, host: str, port: int, deadline: float, clock: LoopClock, protocol: asyncio.Protocol
) -> asyncio.Transport:
    """Return the same for an event loop: the transport of `protocol`."""
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {} if address.tls is None else {"ssl": address.tls, "server_hostname": host}
    for count, resolved in _in_turn(await asyncio.wrap_future(_resolve(address, host, port))):
        with _new_socket(resolved, count) as plain:
            plain.setblocking(False)
            with clock.timeout_at(deadline - (deadline - clock.time()) * (count - 1) / count):
                await loop.sock_connect(plain, resolved.end)
                return (await loop.create_connection(lambda: protocol, sock=plain, **tls))[0]
    raise OSError("the name has no address")


def _resolve(address: Address, host: str, port: int) -> Future[list[ResolvedAddress]]:
    if not address.path:
        return resolve(host, port)
    local: Future[list[ResolvedAddress]] = Future()
    local.set_result([ResolvedAddress(socket.AF_UNIX, address.path)])
    return local


def _in_turn(addresses: list[ResolvedAddress]) -> Iterator[tuple[int, ResolvedAddress]]:
    """Return each address with the number of addresses that are left, itself included."""
    return zip(range(len(addresses), 0, -1), addresses, strict=True)


@contextmanager
def _new_socket(resolved: ResolvedAddress, count: int) -> Iterator[socket.socket]:
    """Yield a socket with keepalive, which detects a dead server even while no call is out.

    An error in the block closes the socket. It is raised unless another of the ``count`` addresses may accept.
    """
    plain = socket.socket(resolved.family, socket.SOCK_STREAM)
    try:
        if resolved.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):  # not on every platform
                    plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        yield plain
    except BaseException as error:
        plain.close()
        if count == 1 or not isinstance(error, OSError):
            raise


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
