"""The two drivers of calls: threads, or the running event loop. Code that is given a driver is written once."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from .budget import LoopClock, ThreadClock, take_error
from .servers import Server
from .turns import Turns
from .wire import BlockingChannel, BlockingConnection, Codec, LoopChannel, LoopConnection

Tls = ssl.SSLContext | None
_Result = TypeVar("_Result")


class _Driver:
    replies = 0
    """How often the store has replied."""
    connections: Any = None
    """The connections of the store, if it has any."""

    def close(self) -> None:
        """Close the connections."""
        if self.connections is not None:
            self.connections.close()


class ThreadDriver(_Driver):
    """The driver of blocking calls: its coroutines never wait for an event loop, so ``run_blocking`` runs them."""

    def __init__(self, seconds: float) -> None:
        self.clock = ThreadClock(seconds)
        self.turns = Turns()

    async def run(self, deadline: float, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method that blocks."""
        return self.clock.once(lambda _: method(*arguments), deadline)

    async def result(self, future: Future[_Result], deadline: float) -> _Result:
        """Return the result of another thread, or ``TimeoutError``."""
        return self.clock.result(future, deadline)

    async def complete(self, work: Awaitable[None], then: Callable[[], None]) -> None:
        """Do work that others wait for, and ``then`` what ends it. It is completed when its caller is cancelled."""
        try:
            await work
        finally:
            then()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def connect(self, plain: socket.socket, end: Any, deadline: float) -> None:
        """Connect a new socket."""

        def attempt(seconds: float) -> None:
            plain.settimeout(seconds)
            plain.connect(end)

        self.clock.once(attempt, deadline)

    async def wrap(
        self, plain: socket.socket, server: Server, tls: Tls, codec: Codec, deadline: float
    ) -> BlockingConnection:
        """Return the connection of a socket, after the handshake of TLS."""
        if tls is None:
            return BlockingConnection(plain, codec, self.clock)
        encrypted = tls.wrap_socket(plain, server_hostname=server.host, do_handshake_on_connect=False)
        connection = BlockingConnection(encrypted, codec, self.clock)
        connection.shake_hands(encrypted, deadline)
        return connection

    def drop(self, plain: socket.socket) -> None:
        """Close a socket that is not connected in time."""
        plain.close()

    def channel(self, connect: Callable[[float], Awaitable[Any]]) -> BlockingChannel:
        """Return a channel, which connects when a call needs it, until a time."""
        return BlockingChannel(connect, self.clock)


async def forget_transports() -> None:
    """Let the running loop end the connects that were cancelled, close their transports, and forget them."""
    for _ in range(3):
        await asyncio.sleep(0)


class LoopDriver(_Driver):
    """The same for the calls of the running event loop."""

    def __init__(self, seconds: float) -> None:
        self.clock = LoopClock(seconds)
        self.turns = Turns()

    async def run(self, deadline: float, method: Callable[..., Any], *arguments: Any) -> Any:
        return await self.clock.within(asyncio.to_thread(method, *arguments), deadline)

    async def result(self, future: Future[_Result], deadline: float) -> _Result:
        if future.done():  # at once, even for a caller that is cancelled again and again
            return future.result()
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(take_error)
        return await self.clock.result(wrapped, deadline)

    async def complete(self, work: Awaitable[None], then: Callable[[], None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(take_error)
        task.add_done_callback(lambda _: then())
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await asyncio.wait((task,))  # then it is known which corrections are left
            raise
        if task.cancelled():  # which would look as if the caller was
            raise TimeoutError
        task.result()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def connect(self, plain: socket.socket, end: Any, deadline: float) -> None:
        plain.setblocking(False)
        await self.clock.within(asyncio.get_running_loop().sock_connect(plain, end), deadline)

    async def wrap(
        self, plain: socket.socket, server: Server, tls: Tls, codec: Codec, deadline: float
    ) -> LoopConnection:
        connection, loop = LoopConnection(codec, self.clock), asyncio.get_running_loop()
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": server.host}
        try:
            await self.clock.within(loop.create_connection(lambda: connection, sock=plain, **options), deadline)
        except BaseException:
            connection.close()  # it may have connected meanwhile
            raise
        return connection

    def drop(self, plain: socket.socket) -> None:
        """Close a socket after the loop has left it: the task that connects, which was cancelled, ends before."""
        try:
            asyncio.get_running_loop().call_soon(plain.close)
        except RuntimeError:  # the loop has ended
            plain.close()

    def channel(self, connect: Callable[[float], Awaitable[Any]]) -> LoopChannel:
        return LoopChannel(connect, self.clock)


Driver = ThreadDriver | LoopDriver
Channel = BlockingChannel | LoopChannel
