"""Calls through a ``redis.Redis`` of the application: its pool, its login and its tracing apply, its retries do not.

A retry of redis-py could count one request several times.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.retry import Retry

from ....errors import ConfigError
from ..message import Message
from .connect import left
from .errors import Command
from .server import aevaluate, evaluate

_FULL_POOL_WAIT: Final = 0.002  # seconds
_AS_BYTES: Final = {NEVER_DECODE: True}  # also when the client decodes responses


def check_client(client: Any, kind: type, argument: str) -> None:
    """Raise ``ConfigError`` for a client that the store cannot use."""
    name = f"{kind.__module__.partition('.client')[0]}.Redis"
    if not isinstance(client, kind):
        raise ConfigError(
            f"{argument}: expected a {name}; got a {type(client).__name__}. For a cluster, use redis+cluster://"
        )
    if getattr(client, "connection", None) is not None or getattr(client, "single_connection_client", False):
        raise ConfigError(f"{argument}: expected a {name} without single_connection_client=True")


def _is_full(error: redis.ConnectionError) -> bool:
    """Return whether a pool had no free connection. Nothing was sent, so the call may try again."""
    return "Too many connections" in str(error)


class PoolWithoutRetries:
    """The pool of a client. Its connections do not retry while they are out."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._no_retry = Retry(NoBackoff(), 0)
        self._of_thread = threading.local()
        self.is_connected = False
        """Whether the last call had a reply. If not, taking a connection may have to connect first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def bound(self, deadline: float) -> None:
        """Set the deadline of the next call of this thread."""
        self._of_thread.deadline = deadline

    def get_connection(self, *args: Any, **options: Any) -> Any:
        take = partial(self._take, self._of_thread.deadline, *args, **options)
        connection = take() if self.is_connected else self._take_in_thread(take)
        self._of_thread.retry, connection.retry = connection.retry, self._no_retry
        if (plain := getattr(connection, "_sock", None)) is not None:
            plain.settimeout(left(self._of_thread.deadline))
        return connection

    def _take(self, deadline: float, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return self._pool.get_connection(*args, **options)
            except redis.ConnectionError as error:
                if not _is_full(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_FULL_POOL_WAIT)

    def _take_in_thread(self, take: Callable[[], Any]) -> Any:
        """Bound the time to connect: the timeouts and retries of the client may take much longer."""
        taken: Future[Any] = Future()

        def run() -> None:
            try:
                connection = take()
            except Exception as error:
                if taken.set_running_or_notify_cancel():
                    taken.set_exception(error)
            else:
                if taken.set_running_or_notify_cancel():
                    taken.set_result(connection)
                else:
                    self._pool.release(connection)

        threading.Thread(target=run, name="ratelimit_mw connect", daemon=True).start()
        try:
            return taken.result(left(self._of_thread.deadline))
        except TimeoutError:
            if taken.cancel():
                raise
            return taken.result()

    def release(self, connection: Any) -> None:
        connection.retry = self._of_thread.retry
        if (plain := getattr(connection, "_sock", None)) is not None:
            plain.settimeout(connection.socket_timeout)
        self._pool.release(connection)


class AsyncPoolWithoutRetries:
    """Async form of `PoolWithoutRetries`. The caller bounds each call."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._no_retry = AsyncRetry(NoBackoff(), 0)
        self._retries: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        connection = await self._take(*args, **options)
        self._retries[connection], connection.retry = connection.retry, self._no_retry
        return connection

    async def _take(self, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return await self._pool.get_connection(*args, **options)
            except redis.ConnectionError as error:
                if not _is_full(error):
                    raise
                await asyncio.sleep(_FULL_POOL_WAIT)

    async def release(self, connection: Any) -> None:
        connection.retry = self._retries.pop(connection)
        await self._pool.release(connection)


def _without_retries(client: Any, pool: Any) -> Any:
    """A copy of a client with another pool. Its end does not close the pool of the application."""
    own = copy.copy(client)
    own.connection_pool = pool
    own.auto_close_connection_pool = False
    return own


class ApplicationClient:
    """For threads."""

    def __init__(self, client: Any) -> None:
        check_client(client, redis.Redis, "client")
        self._pool = PoolWithoutRetries(client.connection_pool)
        self._client = _without_retries(client, self._pool)

    def ask(self, message: Message, deadline: float) -> Any:
        return evaluate(partial(self._call, deadline=deadline), message)

    def close(self) -> None:
        """The application closes its client."""

    def _call(self, command: Command, deadline: float) -> Any:
        self._pool.bound(deadline)
        try:
            reply = self._client.execute_command(command[0].decode(), *command[1:], **_AS_BYTES)
        except redis.ResponseError:
            raise
        except Exception:
            self._pool.is_connected = False
            raise
        self._pool.is_connected = True
        return reply


class AsyncApplicationClient:
    """For the event loop of the client."""

    def __init__(self, client: Any) -> None:
        check_client(client, redis.asyncio.Redis, "aclient")
        self._client = _without_retries(client, AsyncPoolWithoutRetries(client.connection_pool))

    async def ask(self, message: Message) -> Any:
        return await aevaluate(self._call, message)

    async def aclose(self) -> None:
        """The application closes its client."""

    async def _call(self, command: Command) -> Any:
        return await self._client.execute_command(command[0].decode(), *command[1:], **_AS_BYTES)


class LoopBridge:
    """Blocking calls without a blocking client: they run on the event loop of the async client, in its own thread.

    The limiter probes the store and returns slots from threads of its own.
    """

    def __init__(self, target: AsyncApplicationClient, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        self._target = target
        self._loops = loops

    def ask(self, message: Message, deadline: float) -> Any:
        loop = next((each for each in list(self._loops) if each.is_running()), None)
        if loop is None or asyncio._get_running_loop() is loop:
            raise ConfigError("this RedisStore cannot make blocking calls. Pass client= as well, or a URL")
        call = asyncio.run_coroutine_threadsafe(self._target.ask(message), loop)
        try:
            return call.result(left(deadline))
        except TimeoutError:
            call.cancel()
            raise

    def close(self) -> None:
        """The application closes its client."""
