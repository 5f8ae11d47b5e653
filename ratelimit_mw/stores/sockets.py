"""Open sockets: try each address of a server, and encrypt. Each step has a bounded time."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from .budget import LoopClock, ThreadClock
from .dns import ResolvedAddress

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_NO_HANDSHAKE: Final = "no TLS handshake%s (for a server without TLS, write redis:// or memcached://)"


def open_socket(
    addresses: Future[list[ResolvedAddress]], tls: ssl.SSLContext | None, host: str, deadline: float, clock: ThreadClock
) -> socket.socket:
    """Return a socket that is connected to one of the addresses, encrypted with ``tls`` if it is given."""
    for count, resolved in _in_turn(clock.result(addresses, deadline)):
        with _new_socket(resolved, count) as plain:
            clock.connect(plain, resolved.end, clock.seconds_until(deadline) / count)
            if tls is None:
                return plain
            with _naming_plain_servers(clock, deadline):
                return clock.encrypt(plain, tls, host, deadline)
    raise OSError("the name has no address")


async def open_stream(
    addresses: Future[list[ResolvedAddress]],
    tls: ssl.SSLContext | None,
    host: str,
    deadline: float,
    clock: LoopClock,
    protocol: asyncio.Protocol,
) -> asyncio.Transport:
    """Return the same for an event loop: the transport of ``protocol``."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": host}
    for count, resolved in _in_turn(await asyncio.wrap_future(addresses)):
        with _new_socket(resolved, count) as plain:
            plain.setblocking(False)
            with clock.timeout_at(deadline - (deadline - clock.time()) * (count - 1) / count):
                await loop.sock_connect(plain, resolved.end)
                with nullcontext() if tls is None else _naming_plain_servers(clock, deadline):
                    return (await loop.create_connection(lambda: protocol, sock=plain, **options))[0]
    raise OSError("the name has no address")


@contextmanager
def _naming_plain_servers(clock: ThreadClock | LoopClock, deadline: float) -> Iterator[None]:
    """Name the likely reason of a failed handshake: a server without TLS waits for a line, or replies in plain text."""
    try:
        yield
    except (TimeoutError, asyncio.CancelledError, ssl.SSLError) as error:
        is_refused = isinstance(error, ssl.SSLError)
        is_early = not is_refused and clock.time() < deadline
        if is_early or isinstance(error, ssl.SSLCertVerificationError):
            raise
        reason = f": {error}" if is_refused else " within the time budget"
        raise ConnectionError(_NO_HANDSHAKE % reason) from error


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
