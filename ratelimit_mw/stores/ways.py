"""The two ways to wait: the threads that call, or the running event loop. Code that is given a way is written once."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from .blocking import run_once
from .budget import LoopClock, ThreadClock, take_error
from .servers import Server
from .wire import BlockingChannel, BlockingConnection, Codec, LoopChannel, LoopConnection

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_NO_HANDSHAKE: Final = "no TLS handshake%s (for a server without TLS, write redis:// or memcached://)"
Tls = ssl.SSLContext | None
_Result = TypeVar("_Result")


class Turns:
    """The keys that calls of this process are using, so that no two race, and the calls that wait for them.

    A call has ``keys``. While it waits it has a ``turn``, whose result are the calls to decide together. ``joins`` is
    whether that may be several.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._waiting: list[Any] = []

    def take(self, call: Any) -> bool:
        """Take the keys of a call, or let it wait. A call does not overtake another one."""
        with self._lock:
            is_free = self._busy.isdisjoint(call.keys)
            if is_free and self._waiting:
                is_free = all(each.keys.isdisjoint(call.keys) for each in self._waiting)
            if is_free:
                self._busy |= call.keys
            else:
                call.turn = Future()
                self._waiting.append(call)
        return is_free

    def leave(self, call: Any) -> bool:
        """Let a call wait no longer. Return False if its turn has come."""
        with self._lock:
            if is_waiting := call in self._waiting:
                self._waiting.remove(call)
                call.turn.set_result(())
        return is_waiting

    def end(self, calls: Iterable[Any]) -> None:
        """Free the keys of calls, and begin the turns of those that waited for them: one for all with a common key."""
        turns: list[tuple[set[str], list[Any]]] = []
        with self._lock:
            for each in calls:
                self._busy -= each.keys
            waiting, self._waiting, blocked = self._waiting, [], self._busy.copy()
            for call in waiting:
                near = [turn for turn in turns if not turn[0].isdisjoint(call.keys)]
                is_free = blocked.isdisjoint(call.keys)
                if is_free and not near:
                    turns.append((set(call.keys), [call]))
                elif is_free and len(near) == 1 and call.joins and near[0][1][0].joins:
                    near[0][0].update(call.keys)
                    near[0][1].append(call)
                else:
                    self._waiting.append(call)
                    blocked |= call.keys
            for keys, group in turns:
                self._busy |= keys
                group[-1].turn.set_result(group)  # it has most time left


class _Way:
    replies = 0
    """How often the store has replied."""
    connections: Any = None
    """The connections of the store, if it has any."""

    def close(self) -> None:
        """Close the connections."""
        if self.connections is not None:
            self.connections.close()


class Threads(_Way):
    """The way of blocking calls: its coroutines never wait for an event loop, so ``run_blocking`` runs them."""

    def __init__(self, seconds: float) -> None:
        self.clock = ThreadClock(seconds)
        self.turns = Turns()

    async def run(self, due: float, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method that blocks."""
        return self.clock.once(lambda _: method(*arguments), due)

    async def result(self, future: Future[_Result], due: float) -> _Result:
        """Return the result of another thread, or ``TimeoutError``."""
        return self.clock.result(future, due)

    async def complete(self, work: Awaitable[None]) -> None:
        """Do work that others wait for. It is completed when its caller is cancelled."""
        await work

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def connect(self, plain: socket.socket, end: Any, due: float) -> None:
        """Connect a new socket."""

        def attempt(seconds: float) -> None:
            plain.settimeout(seconds)
            plain.connect(end)

        self.clock.once(attempt, due)

    async def wrap(
        self, plain: socket.socket, server: Server, tls: Tls, codec: Codec, due: float
    ) -> BlockingConnection:
        """Return the connection of a socket, after the handshake of TLS."""
        if tls is None:
            return BlockingConnection(plain, codec, self.clock)
        encrypted = tls.wrap_socket(plain, server_hostname=server.host, do_handshake_on_connect=False)
        connection = BlockingConnection(encrypted, codec, self.clock)
        connection.shake_hands(encrypted, due)
        return connection

    def channel(self, connect: Callable[[float], Awaitable[Any]]) -> BlockingChannel:
        """Return a channel, which connects when a call needs it, until a time."""
        return BlockingChannel(connect, self.clock)


async def forget_transports() -> None:
    """Let the running loop end the connects that were cancelled, close their transports, and forget them."""
    for _ in range(3):
        await asyncio.sleep(0)


class EventLoop(_Way):
    """The same for the calls of the running event loop."""

    def __init__(self, seconds: float) -> None:
        self.clock = LoopClock(seconds)
        self.turns = Turns()

    async def run(self, due: float, method: Callable[..., Any], *arguments: Any) -> Any:
        return await self.clock.within(asyncio.to_thread(method, *arguments), due)

    async def result(self, future: Future[_Result], due: float) -> _Result:
        if future.done():
            return future.result()
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(take_error)
        return await self.clock.result(wrapped, due)

    async def complete(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(take_error)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,))  # then it is known which corrections are left
            raise

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def connect(self, plain: socket.socket, end: Any, due: float) -> None:
        plain.setblocking(False)
        await self.clock.within(asyncio.get_running_loop().sock_connect(plain, end), due)

    async def wrap(self, plain: socket.socket, server: Server, tls: Tls, codec: Codec, due: float) -> LoopConnection:
        connection, loop = LoopConnection(codec, self.clock), asyncio.get_running_loop()
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": server.host}
        try:
            await self.clock.within(loop.create_connection(lambda: connection, sock=plain, **options), due)
        except BaseException:
            connection.close()  # it may have connected meanwhile
            raise
        return connection

    def channel(self, connect: Callable[[float], Awaitable[Any]]) -> LoopChannel:
        return LoopChannel(connect, self.clock)


Way = Threads | EventLoop
Channel = BlockingChannel | LoopChannel


# -- connecting --------------------------------------------------------------------------------------------------------


async def open_connection(way: Way, server: Server, tls: Tls, codec: Codec, deadline: float) -> Any:
    """Return a connection to one of the addresses of a server. An error names the server, unless it is a timeout."""
    try:
        return await _open_connection(way, server, tls, codec, deadline)
    except TimeoutError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error
        raise ConnectionError(f"cannot connect to {server}: {reason}") from error


async def _open_connection(way: Way, server: Server, tls: Tls, codec: Codec, deadline: float) -> Any:
    addresses = await way.result(run_once(("resolve", server), partial(_addresses_of, server)), deadline)
    for left, (family, end) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        plain = _new_socket(family)
        try:
            await way.connect(plain, end, way.clock.now + (deadline - way.clock.now) / left)
            return await _wrap(way, plain, server, tls, codec, deadline)
        except BaseException as error:
            plain.close()
            if left == 1 or not isinstance(error, OSError):  # no other address may accept
                raise
    raise OSError("the name has no address")


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


async def _wrap(way: Way, plain: socket.socket, server: Server, tls: Tls, codec: Codec, deadline: float) -> Any:
    """Name the likely reason of a failed handshake: a server without TLS waits for a line, or replies in plain text."""
    try:
        return await way.wrap(plain, server, tls, codec, deadline)
    except (TimeoutError, ssl.SSLError) as error:
        if tls is None or isinstance(error, ssl.SSLCertVerificationError):
            raise
        reason = f": {error}" if isinstance(error, ssl.SSLError) else " within the time budget"
        raise ConnectionError(_NO_HANDSHAKE % reason) from error
