"""The two ways to wait: the threads that call, or the running event loop. Code that is given a way is written once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from socket import socket
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from .budget import LoopClock, ThreadClock
from .wire import BlockingChannel, BlockingConnection, Codec, LoopChannel, LoopConnection, Place

_Lock = TypeVar("_Lock", bound=Any)
_Result = TypeVar("_Result")


class Turns(Generic[_Lock]):
    """The locks of the keys in use. With them the calls of a process do not race with each other."""

    def __init__(self, create: Callable[[], _Lock]) -> None:
        self._create = create
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    def of(self, keys: Iterable[str]) -> list[_Lock]:
        """Return the locks of keys in the one order in which all calls take them."""
        locks = self._locks
        return [locks.get(key) or locks.setdefault(key, self._create()) for key in sorted(set(keys))]


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

    lock: Callable[[], Any] = nullcontext

    def __init__(self, seconds: float) -> None:
        self.clock = ThreadClock(seconds)
        self.turns = Turns(threading.Lock)

    async def run(self, due: float, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method that blocks."""
        return self.clock.once(lambda _: method(*arguments), due)

    async def result(self, future: Future[_Result], due: float) -> _Result:
        """Return the result of another thread, or ``TimeoutError``."""
        return self.clock.result(future, due)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def take_turn(self, keys: Iterable[str], due: float, taken: list[threading.Lock]) -> None:
        """Take the locks of keys, and add them to those that are ``taken``."""
        for lock in self.turns.of(keys):
            if not lock.acquire(False):
                self.clock.wait(partial(_acquire, lock), due)
            taken.append(lock)

    async def connect(self, plain: socket, end: Any, due: float) -> None:
        """Connect a new socket."""

        def attempt(seconds: float) -> None:
            plain.settimeout(seconds)
            plain.connect(end)

        self.clock.once(attempt, due)

    async def wrap(self, plain: socket, place: Place, codec: Codec, due: float) -> BlockingConnection:
        """Return the connection of a socket, after the handshake of TLS."""
        if place.tls is None:
            return BlockingConnection(plain, codec, self.clock)
        encrypted = place.tls.wrap_socket(plain, server_hostname=place.host, do_handshake_on_connect=False)
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

    lock: Callable[[], Any] = asyncio.Lock

    def __init__(self, seconds: float) -> None:
        self.clock = LoopClock(seconds)
        self.turns = Turns(asyncio.Lock)

    async def run(self, due: float, method: Callable[..., Any], *arguments: Any) -> Any:
        return await self.clock.within(asyncio.to_thread(method, *arguments), due)

    async def result(self, future: Future[_Result], due: float) -> _Result:
        if future.done():
            return future.result()
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(_take_error)
        return await self.clock.result(wrapped, due)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def take_turn(self, keys: Iterable[str], due: float, taken: list[asyncio.Lock]) -> None:
        for lock in self.turns.of(keys):
            if lock.locked():
                await self._wait_for(lock, due)
            else:
                await lock.acquire()
            taken.append(lock)

    async def _wait_for(self, lock: asyncio.Lock, due: float) -> None:
        turn = asyncio.ensure_future(lock.acquire())
        try:
            await self.clock.result(turn, due)
        except BaseException:
            if not turn.cancel() and not turn.cancelled():
                lock.release()  # it was taken when this call was cancelled
            raise

    async def connect(self, plain: socket, end: Any, due: float) -> None:
        plain.setblocking(False)
        await self.clock.within(asyncio.get_running_loop().sock_connect(plain, end), due)

    async def wrap(self, plain: socket, place: Place, codec: Codec, due: float) -> LoopConnection:
        connection, loop = LoopConnection(codec, self.clock), asyncio.get_running_loop()
        if place.tls is None:
            await loop.create_connection(lambda: connection, sock=plain)
            return connection
        options: dict[str, Any] = {"ssl": place.tls, "server_hostname": place.host}
        task = loop.create_task(loop.create_connection(lambda: connection, sock=plain, **options))
        try:
            await self.clock.result(task, due)
        except BaseException:
            task.cancel()
            task.add_done_callback(partial(_close, connection))  # it may have connected meanwhile
            raise
        return connection

    def channel(self, connect: Callable[[float], Awaitable[Any]]) -> LoopChannel:
        return LoopChannel(connect, self.clock)


def _close(connection: LoopConnection, task: asyncio.Task[Any]) -> None:
    connection.close()
    _take_error(task)


def _take_error(future: asyncio.Future[Any]) -> None:
    """Note that an error is known: its call may have left, and asyncio would log it."""
    if not future.cancelled():
        future.exception()


def _acquire(lock: Any, seconds: float) -> None:
    if not lock.acquire(timeout=seconds):
        raise TimeoutError


Way = Threads | EventLoop
