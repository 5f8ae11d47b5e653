"""The way to a server: its name looked up, reached, encrypted, each in the time that is left. Says nothing to it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ....errors import StoreError
from ...dns import ResolvedAddress, resolve
from ..address import Address

__all__ = ["areached", "left", "reached"]

P = TypeVar("P", bound=asyncio.Protocol)

_SHORTEST: Final = 0.001  # seconds: a timeout of 0 would mean something else
_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, tries


def left(deadline: float) -> float:
    """Seconds until a deadline of the monotonic clock."""
    return max(_SHORTEST, deadline - time.monotonic())


def reached(address: Address, host: str, port: int, deadline: float) -> socket.socket:
    """A socket to one of the servers of ``address``; ``StoreError`` names the server that could not be reached."""
    try:
        ways = _ways(address, host, port).result(left(deadline))
        for others, way in _countdown(ways):
            try:
                return _connected(address, host, way, time.monotonic() + left(deadline) / (others + 1))
            except OSError:
                if not others:
                    raise
        raise OSError("the name stands for no address")
    except OSError as error:
        raise _unreached(address, host, port, error) from error


def _connected(address: Address, host: str, way: ResolvedAddress, deadline: float) -> socket.socket:
    plain = _plain(way)
    try:
        plain.settimeout(left(deadline))
        plain.connect(way.end)
        plain.settimeout(left(deadline))
        return plain if address.tls is None else address.tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


async def areached(address: Address, host: str, port: int, patience: float, protocol: Callable[[], P]) -> P:
    """The same on an event loop: the protocol of the connection. The caller bounds it; ``patience`` is all it has."""
    try:
        ways = await asyncio.wrap_future(_ways(address, host, port))
        for others, way in _countdown(ways):
            try:
                async with asyncio.timeout(patience / len(ways)):
                    return await _aconnected(address, host, way, protocol)
            except OSError:
                if not others:
                    raise
        raise OSError("the name stands for no address")
    except OSError as error:
        raise _unreached(address, host, port, error) from error


async def _aconnected(address: Address, host: str, way: ResolvedAddress, protocol: Callable[[], P]) -> P:
    loop, plain = asyncio.get_running_loop(), _plain(way)
    try:
        plain.setblocking(False)
        await loop.sock_connect(plain, way.end)
    except BaseException:
        plain.close()
        raise
    tls: dict[str, Any] = {} if address.tls is None else {"ssl": address.tls, "server_hostname": host}
    _, found = await loop.create_connection(protocol, sock=plain, **tls)
    return found


def _plain(way: ResolvedAddress) -> socket.socket:
    """A socket that tells when its server is gone, also when nothing is said."""
    plain = socket.socket(way.family, socket.SOCK_STREAM)
    if way.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():
            if hasattr(socket, name):  # not everywhere
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return plain


def _countdown(ways: list[ResolvedAddress]) -> Iterator[tuple[int, ResolvedAddress]]:
    """Each with the number of those after it."""
    return zip(range(len(ways) - 1, -1, -1), ways, strict=True)


def _ways(address: Address, host: str, port: int) -> Future[list[ResolvedAddress]]:
    if not address.path:
        return resolve(host, port)
    known: Future[list[ResolvedAddress]] = Future()
    known.set_result([ResolvedAddress(socket.AF_UNIX, address.path)])
    return known


def _unreached(address: Address, host: str, port: int, error: OSError) -> Exception:
    if isinstance(error, TimeoutError):
        return error
    return StoreError(f"Redis at {address.path or f'{host}:{port}'} cannot be reached: {error}")
