"""Open a socket to a server: resolve its name, try each address, encrypt. Each step has a share of the time left."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final

from ...dns import ResolvedAddress, resolve
from ..address import Address

_SHORTEST: Final = 0.001  # seconds: a timeout of 0 makes a socket non-blocking
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes


def left(deadline: float) -> float:
    """Seconds until a deadline of the monotonic clock, at least 1 ms."""
    return max(_SHORTEST, deadline - time.monotonic())


def without_library_name(connection: Any) -> Any:
    """Leave out CLIENT SETINFO: two round trips of each connect, which the budget of a call may not have."""
    connection.driver_info = connection.lib_name = connection.lib_version = None  # of newer and older redis-py
    return connection


def open_socket(address: Address, host: str, port: int, deadline: float) -> socket.socket:
    """A connected socket, encrypted if the address asks for it."""
    for others, resolved in _in_turn(_resolve(address, host, port).result(left(deadline))):
        plain = _new_socket(resolved)
        try:
            plain.settimeout(left(deadline) / (others + 1))
            plain.connect(resolved.end)
            return plain if address.tls is None else address.tls.wrap_socket(plain, server_hostname=host)
        except BaseException as error:
            plain.close()
            if not others or not isinstance(error, OSError):
                raise
    raise OSError("the name has no address")


async def open_stream(address: Address, host: str, port: int, timeout: float, protocol: asyncio.Protocol) -> Any:
    """The same for an event loop: the transport of `protocol`."""
    addresses = await asyncio.wrap_future(_resolve(address, host, port))
    for others, resolved in _in_turn(addresses):
        plain = _new_socket(resolved)
        try:
            plain.setblocking(False)
            async with asyncio.timeout(timeout / len(addresses)):
                await asyncio.get_running_loop().sock_connect(plain, resolved.end)
                tls: dict[str, Any] = {} if address.tls is None else {"ssl": address.tls, "server_hostname": host}
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(lambda: protocol, sock=plain, **tls))[0]
        except BaseException as error:
            plain.close()
            if not others or not isinstance(error, OSError):
                raise
    raise OSError("the name has no address")


def _resolve(address: Address, host: str, port: int) -> Future[list[ResolvedAddress]]:
    if not address.path:
        return resolve(host, port)
    known: Future[list[ResolvedAddress]] = Future()
    known.set_result([ResolvedAddress(socket.AF_UNIX, address.path)])
    return known


def _in_turn(addresses: list[ResolvedAddress]) -> Iterator[tuple[int, ResolvedAddress]]:
    """Each address with the number of those after it."""
    return zip(range(len(addresses) - 1, -1, -1), addresses, strict=True)


def _new_socket(resolved: ResolvedAddress) -> socket.socket:
    """A socket with keepalive, which detects a dead server also while no call is out."""
    plain = socket.socket(resolved.family, socket.SOCK_STREAM)
    if resolved.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on every platform
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return plain
