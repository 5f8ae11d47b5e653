"""Calls through a ``redis.Redis`` of the application: its pool, its login and its tracing apply, its retries do not.

A retry of redis-py could count one request several times.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from ...errors import ConfigError
from ..blocking import run_once
from ..budget import ThreadClock
from ..servers import Server
from ..ways import EventLoop, Threads, Way
from .address import Address
from .call import Call
from .errors import Command
from .router import Router

_FULL_POOL: Final = "Too many connections", "No connection available"  # nothing was sent: the call may try again
_FULL_POOL_WAIT: Final = 0.002  # seconds
_AS_BYTES: Final = {NEVER_DECODE: True}  # even when the client decodes responses


class ApplicationRouter(Router):
    """A router whose one server is that of a client. ``execute`` returns the reply to a command before a deadline."""

    def __init__(self, name: str, way: Way, execute: Callable[[Command, float], Awaitable[Any]]) -> None:
        super().__init__(Address((Server(name, 0),)), way)
        self._execute = execute

    async def command(self, location: Server, deadline: float, *command: Any) -> Any:
        return await self._execute(command, deadline)

    async def _post(self, location: Server, calls: Sequence[Call], deadline: float) -> Awaitable[list[Any]]:
        replies: list[Any] = []
        for each in calls:
            try:
                replies.append(await self._execute(each.command, deadline))
            except redis.ResponseError as error:
                replies.append(error)
        return _as_awaitable(replies)


async def _as_awaitable(replies: list[Any]) -> list[Any]:
    return replies


class _Client:
    """A client of redis-py. Each call uses a copy, which has one connection and no retries."""

    def __init__(self, client: Any, kind: Any, argument: str, no_retry: Any) -> None:
        name = f"{kind.__module__.partition('.client')[0]}.Redis"
        if not isinstance(client, kind):
            got = type(client).__name__
            raise ConfigError(f"{argument}: expected a {name}; got a {got}. For a cluster, use redis+cluster://")
        if getattr(client, "connection", None) is not None or getattr(client, "single_connection_client", False):
            raise ConfigError(f"{argument}: expected a {name} without single_connection_client=True")
        self._client: Any = client
        self._pool = self._client.connection_pool
        self.name = _name(self._pool)
        self._no_retry = no_retry

    @contextmanager
    def _copy(self, connection: Any) -> Iterator[Any]:
        own = copy.copy(self._client)
        own.auto_close_connection_pool = False
        retry, connection.retry, own.connection = connection.retry, self._no_retry, connection
        try:
            yield own
        finally:
            connection.retry, own.connection = retry, None


class ApplicationClient(_Client):
    """A client for threads."""

    def __init__(self, client: Any, clock: ThreadClock) -> None:
        super().__init__(client, redis.Redis, "client", Retry(NoBackoff(), 0))
        self._clock = clock
        self._never_waits = type(self._pool) in (redis.ConnectionPool, SentinelConnectionPool)
        """Whether the pool is of a kind that raises an error when it is full. Others may wait, for 20 s or longer."""
        self._is_connected = False
        """Whether the last call had a reply. If not, taking a connection may have to connect first."""

    async def execute(self, command: Command, deadline: float) -> Any:
        try:
            reply = self._execute(command, deadline)
        except redis.ResponseError:
            raise
        except Exception:
            self._is_connected = False
            raise
        self._is_connected = True
        return reply

    def _execute(self, command: Command, deadline: float) -> Any:
        is_quick = self._is_connected and self._never_waits
        connection = self._take(deadline) if is_quick else self._take_in_thread(deadline)

        def execute(seconds: float) -> Any:
            _set_timeout(connection, seconds)
            with self._copy(connection) as own:
                return own.execute_command(command[0].decode(), *command[1:], **_AS_BYTES)

        try:
            return self._clock.once(execute, deadline)
        finally:
            _set_timeout(connection, connection.socket_timeout)
            self._pool.release(connection)

    def _take(self, deadline: float) -> Any:
        while True:
            try:
                return self._pool.get_connection()
            except redis.ConnectionError as error:
                if not _is_full(error) or self._clock.now >= deadline:
                    raise
                self._clock.once(lambda _: time.sleep(_FULL_POOL_WAIT), deadline)

    def _take_in_thread(self, deadline: float) -> Any:
        """Bound the time to connect and to wait: the timeouts and retries of the client may take much longer."""

        def release(taken: Future[Any]) -> None:
            if taken.exception() is None:
                self._pool.release(taken.result())

        seconds = deadline - self._clock.now
        taken = run_once(object(), lambda: self._take(self._clock.now + seconds))  # each thread has its own time
        try:
            return self._clock.result(taken, deadline)
        except TimeoutError:
            taken.add_done_callback(release)
            raise


class AsyncApplicationClient(_Client):
    """A client for one event loop. The caller bounds its calls."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, redis.asyncio.Redis, "aclient", AsyncRetry(NoBackoff(), 0))

    async def execute(self, command: Command) -> Any:
        connection = await self._take()
        try:
            with self._copy(connection) as own:
                return await own.execute_command(command[0].decode(), *command[1:], **_AS_BYTES)
        finally:
            await self._pool.release(connection)

    async def _take(self) -> Any:
        while True:
            try:
                return await self._pool.get_connection()
            except redis.ConnectionError as error:
                if not _is_full(error):
                    raise
                await asyncio.sleep(_FULL_POOL_WAIT)


def blocking_router(client: Any, way: Threads) -> Router:
    """Return the router of a blocking client."""
    own = ApplicationClient(client, way.clock)
    return ApplicationRouter(own.name, way, own.execute)


def loop_router(client: Any, way: EventLoop) -> Router:
    """Return the router of an async client, on its event loop."""
    own = AsyncApplicationClient(client)
    return ApplicationRouter(own.name, way, lambda command, deadline: way.clock.within(own.execute(command), deadline))


def bridging_router(client: Any, loops: Iterable[asyncio.AbstractEventLoop], way: Threads) -> Router:
    """Return the router of an async client for other threads. Its calls run on the event loop of the client.

    The limiter probes the store and returns slots from threads of its own.
    """
    own = AsyncApplicationClient(client)

    async def execute(command: Command, deadline: float) -> Any:
        loop = next((each for each in list(loops) if each.is_running()), None)
        if loop is None or asyncio._get_running_loop() is loop:
            raise ConfigError("this RedisStore cannot make blocking calls. Pass client= as well, or a URL")
        call = asyncio.run_coroutine_threadsafe(own.execute(command), loop)
        try:
            return way.clock.result(call, deadline)
        except TimeoutError:
            call.cancel()
            raise

    return ApplicationRouter(own.name, way, execute)


def _name(pool: Any) -> str:
    """Return the server of a connection pool, as a URL without its login."""
    options = pool.connection_kwargs
    if service := getattr(pool, "service_name", None):
        return f"redis+sentinel://{service}"
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db') or 0}"


def _is_full(error: Exception) -> bool:
    return any(text in str(error) for text in _FULL_POOL)


def _set_timeout(connection: Any, seconds: float | None) -> None:
    if (plain := getattr(connection, "_sock", None)) is not None:
        plain.settimeout(seconds)
