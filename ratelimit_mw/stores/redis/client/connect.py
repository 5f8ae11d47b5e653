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

SHORTEST: Final = 0.001  # seconds: a timeout of 0 makes a socket non-blocking
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes


def seconds_until(deadline: float) -> float:
    """Seconds until a time of the monotonic clock, at least 1 ms."""
    return max(SHORTEST, deadline - time.monotonic())


def open_socket(address: Address, host: str, port: int, deadline: float) -> socket.socket:
    """A connected socket, encrypted if the address asks for it."""
    for count, resolved in _in_turn(_resolve(address, host, port).result(seconds_until(deadline))):
        plain = _new_socket(resolved)
        try:
            plain.settimeout(seconds_until(deadline) / count)
            plain.connect(resolved.end)
            return plain if address.tls is None else address.tls.wrap_socket(plain, server_hostname=host)
        except BaseException as error:
            plain.close()
            if count == 1 or not isinstance(error, OSError):
                raise
    raise OSError("the name has no address")


async def open_stream(
    address: Address, host: str, port: int, deadline: float, protocol: asyncio.Protocol
) -> asyncio.Transport:
    """The same for an event loop, until a time of the loop: the transport of `protocol`."""
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {} if address.tls is None else {"ssl": address.tls, "server_hostname": host}
    for count, resolved in _in_turn(await asyncio.wrap_future(_resolve(address, host, port))):
        plain = _new_socket(resolved)
        try:
            plain.setblocking(False)
            async with asyncio.timeout((deadline - loop.time()) / count):
                await loop.sock_connect(plain, resolved.end)
                return (await loop.create_connection(lambda: protocol, sock=plain, **tls))[0]
        except BaseException as error:
            plain.close()
            if count == 1 or not isinstance(error, OSError):
                raise
    raise OSError("the name has no address")


def _resolve(address: Address, host: str, port: int) -> Future[list[ResolvedAddress]]:
    if not address.path:
        return resolve(host, port)
    local: Future[list[ResolvedAddress]] = Future()
    local.set_result([ResolvedAddress(socket.AF_UNIX, address.path)])
    return local


def _in_turn(addresses: list[ResolvedAddress]) -> Iterator[tuple[int, ResolvedAddress]]:
    """Each address with the number of addresses that are left, itself included."""
    return zip(range(len(addresses), 0, -1), addresses, strict=True)


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
