"""Calls over the connections of an application's ``redis.Redis``: its pool, login and TLS apply, its retries do not.

A retry of redis-py could count one request several times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from typing import Any, Final

import redis
import redis.asyncio
from redis.sentinel import SentinelConnectionPool

from ...errors import ConfigError
from ...runtime.blocking import run_once
from ..drivers import Driver, LoopDriver, ThreadDriver
from ..servers import Server
from .address import Address
from .errors import is_unwell
from .router import Router

_FULL_POOL: Final = "Too many connections", "No connection available"  # of redis-py, for a pool that does not wait
_FULL_POOL_WAIT: Final = 0.002  # seconds


class _PoolChannel:
    """The connections of a pool, as a channel. Each call takes one, and then releases it."""

    connection = None

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def close(self) -> None:
        """Do nothing: the pool belongs to the application."""


class ThreadPoolChannel(_PoolChannel):
    """A pool for threads."""

    def __init__(self, pool: Any, driver: ThreadDriver) -> None:
        super().__init__(pool)
        self._clock = driver.clock
        self._never_waits = type(pool) in (redis.ConnectionPool, SentinelConnectionPool)
        """Whether the pool is of a kind that raises an error when it is full. Others may wait, for 20 s or longer."""
        self._is_connected = False
        """Whether the last call had a reply. If not, taking a connection may have to connect first."""

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        connection = self._take(deadline)

        def send(seconds: float) -> None:
            _set_timeout(connection, seconds)
            connection.send_packed_command([frame], check_health=False)

        def receive(seconds: float) -> Any:
            _set_timeout(connection, seconds)
            try:
                return connection.read_response(disable_decoding=True)
            except redis.ResponseError as error:
                return error

        try:
            self._clock.once(send, deadline)
            received = [self._clock.once(receive, deadline) for _ in range(replies)]
            if is_left := any(map(is_unwell, received)):
                connection.disconnect()
        except Exception:
            self._is_connected = False
            raise
        finally:
            _set_timeout(connection, connection.socket_timeout)
            self._pool.release(connection)
        self._is_connected = not is_left
        return _as_awaitable(received)

    def _take(self, deadline: float) -> Any:
        is_quick = self._is_connected and self._never_waits
        while True:
            try:
                return self._pool.get_connection() if is_quick else self._take_in_thread(deadline)
            except redis.ConnectionError as error:
                if not _is_full(error) or self._clock.now >= deadline:
                    raise
                self._clock.once(lambda _: time.sleep(_FULL_POOL_WAIT), deadline)

    def _take_in_thread(self, deadline: float) -> Any:
        """Bound the time to connect and to wait: the timeouts and retries of the client may take much longer."""

        def release(taken: Future[Any]) -> None:
            if taken.exception() is None:
                self._pool.release(taken.result())

        taken = run_once(object(), self._pool.get_connection)
        try:
            return self._clock.result(taken, deadline)
        except TimeoutError:
            taken.add_done_callback(release)
            raise


class LoopPoolChannel(_PoolChannel):
    """A pool for one event loop."""

    def __init__(self, pool: Any, driver: LoopDriver) -> None:
        super().__init__(pool)
        self._clock = driver.clock

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        return _as_awaitable(await self._clock.within(_exchange(self._pool, frame, replies), deadline))


class BridgeChannel(_PoolChannel):
    """A pool for one event loop, for the threads beside it: the limiter probes the store and returns slots from some.

    ``loops`` are the event loops that have used the store.
    """

    def __init__(self, pool: Any, driver: ThreadDriver, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        super().__init__(pool)
        self._clock, self._loops = driver.clock, loops

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        loop = next((each for each in list(self._loops) if each.is_running()), None)
        if loop is None or asyncio._get_running_loop() is loop:
            raise ConfigError("this RedisStore cannot make blocking calls. Pass client= as well, or a URL")
        call = asyncio.run_coroutine_threadsafe(_exchange(self._pool, frame, replies), loop)
        try:
            return _as_awaitable(self._clock.result(call, deadline))
        except TimeoutError:
            call.cancel()
            raise


async def _exchange(pool: Any, frame: bytes, replies: int) -> list[Any]:
    """Return the replies to calls. The caller bounds the time."""
    connection, received = await _take(pool), []
    try:
        await connection.send_packed_command([frame], check_health=False)
        for _ in range(replies):
            try:
                received.append(await connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                received.append(error)
        if any(map(is_unwell, received)):
            await connection.disconnect()
    finally:
        await pool.release(connection)
    return received


async def _take(pool: Any) -> Any:
    while True:
        try:
            return await pool.get_connection()
        except redis.ConnectionError as error:
            if not _is_full(error):
                raise
            await asyncio.sleep(_FULL_POOL_WAIT)


def _is_full(error: Exception) -> bool:
    """Return whether a pool has no connection left, which is no outage. Nothing was sent."""
    return any(text in str(error) for text in _FULL_POOL)


async def _as_awaitable(replies: list[Any]) -> list[Any]:
    return replies


def application_router(client: Any, aclient: Any, driver: Driver, loops: Iterable[asyncio.AbstractEventLoop]) -> Router:
    """Return the router whose one server is that of the clients of an application."""
    channel: Any
    if isinstance(driver, LoopDriver):
        if aclient is None:
            raise ConfigError("this RedisStore cannot make async calls. Pass aclient= as well, or a URL")
        channel = LoopPoolChannel(pool := _pool_of(aclient, redis.asyncio.Redis, "aclient"), driver)
    elif client is None:
        channel = BridgeChannel(pool := _pool_of(aclient, redis.asyncio.Redis, "aclient"), driver, loops)
    else:
        channel = ThreadPoolChannel(pool := _pool_of(client, redis.Redis, "client"), driver)
    server = Server(_name(pool), 0)
    router = Router(Address((server,)), driver)
    router.add(server, channel)
    return router


def _pool_of(client: Any, kind: Any, argument: str) -> Any:
    """Return the pool of a client, which an argument of the store has passed."""
    if not isinstance(client, kind):
        name, got = f"{kind.__module__.partition('.client')[0]}.Redis", type(client).__name__
        raise ConfigError(f"{argument}: expected a {name}; got a {got}. For a cluster, use redis+cluster://")
    return client.connection_pool


def _name(pool: Any) -> str:
    """Return the server of a connection pool, as a URL without its login."""
    options = pool.connection_kwargs
    if service := getattr(pool, "service_name", None):
        return f"redis+sentinel://{service}"
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db') or 0}"


def _set_timeout(connection: Any, seconds: float | None) -> None:
    if (plain := getattr(connection, "_sock", None)) is not None:
        plain.settimeout(seconds)
