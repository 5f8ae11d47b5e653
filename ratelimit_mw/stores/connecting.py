"""Connect to a server: find its addresses, try one after the other, and name the reason of a failure."""

from __future__ import annotations

import os
import socket
import ssl
from functools import partial
from typing import Any, Final

from ..runtime.blocking import run_once
from .drivers import Driver, Tls
from .servers import Server, TlsFiles
from .wire import Codec

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_NO_HANDSHAKE: Final = "no TLS handshake%s (for a server without TLS, write redis:// or memcached://)"


async def open_connection(driver: Driver, server: Server, tls: TlsFiles | None, codec: Codec, deadline: float) -> Any:
    """Return a connection to one of the addresses of a server. An error names the server, unless it is a timeout."""
    try:
        return await _open_connection(driver, server, tls, codec, deadline)
    except TimeoutError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error
        raise ConnectionError(f"cannot connect to {server}: {reason}") from error


async def _open_connection(
    driver: Driver, server: Server, files: TlsFiles | None, codec: Codec, deadline: float
) -> Any:
    preparing = run_once(("prepare", server, files), partial(_prepare, server, files))
    addresses, tls = await driver.result(preparing, deadline)
    for left, (family, end) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        plain = _new_socket(family)
        try:
            await driver.connect(plain, end, driver.clock.now + (deadline - driver.clock.now) / left)
            return await _wrap(driver, plain, server, tls, codec, deadline)
        except BaseException as error:
            driver.drop(plain)
            if left == 1 or not isinstance(error, OSError):  # no other address may accept
                raise
    raise OSError("the name has no address")


def _prepare(server: Server, files: TlsFiles | None) -> tuple[list[tuple[int, Any]], Tls]:
    """Return what may block an event loop: the addresses of a server, and the context of TLS."""
    return _addresses_of(server), None if files is None else files.context()


def _addresses_of(server: Server) -> list[tuple[int, Any]]:
    """Return the families and addresses of a server, as ``socket.connect`` takes them."""
    if not server.port:
        return [(socket.AF_UNIX, server.host)]
    addresses = socket.getaddrinfo(*server, type=socket.SOCK_STREAM)
    return [(family, end) for family, _, _, _, end in addresses]


def _new_socket(family: int) -> socket.socket:
    """Return a socket with keepalive, which detects a dead server even while no call is out."""
    plain = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on every platform
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return plain


async def _wrap(driver: Driver, plain: socket.socket, server: Server, tls: Tls, codec: Codec, deadline: float) -> Any:
    """Name the likely reason of a failed handshake: a server without TLS waits for a line, or replies in plain text."""
    try:
        return await driver.wrap(plain, server, tls, codec, deadline)
    except (TimeoutError, ssl.SSLError) as error:
        if tls is None or isinstance(error, ssl.SSLCertVerificationError):
            raise
        reason = f": {error}" if isinstance(error, ssl.SSLError) else " within the time budget"
        raise ConnectionError(_NO_HANDSHAKE % reason) from error
