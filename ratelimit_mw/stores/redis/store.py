"""``RedisStore``: states in a Redis or a Valkey. One script call decides all hits of a request.

The time of the server decides unless the caller gives a time. Each blocking call has a connection of its own; requests
of one event loop share calls. Nothing is sent twice, except after NOSCRIPT and the redirects of a cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...decision import Decision, Hit
from ...errors import ConfigError, StoreError
from ...receipt import Correction
from .. import read_address, redacted_url
from ..base import Store
from .address import Address, ParsedAddress
from .client.application import ApplicationClient, AsyncApplicationClient, LoopBridge
from .client.cluster import AsyncCluster, Cluster
from .client.errors import as_store_error
from .client.run import arun, run
from .client.server import AsyncServer, Server
from .client.slots import slot_of
from .client.tls import tls_context
from .event_loop import AsyncTarget, EventLoopState
from .message import PROBE, HitOperation, KeyOperation, Message, Operation, PackedLimits, RedisKeys, read_reply
from .steps import RedisContext, apply_in_steps, correct_in_steps, forget_in_steps

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from redis.credentials import CredentialProvider

Target = ApplicationClient | Cluster | LoopBridge | Server


class RedisStore(Store):
    """Keep states in a Redis that all processes share.

    Args:
        url: A store URL such as ``redis://localhost:6379/0``. docs/redis.md lists the schemes and options.
        prefix: The start of every key, default ``rl:``.
        timeout_us: The time budget of a call in microseconds.
        client: A client of the application in place of a URL. Blocking calls go through it.
        aclient: The same for async calls, on the event loop of that client.
        credential_provider: A credential provider of redis-py in place of a login in the URL.

    Raises:
        ConfigError: The URL, an option or a client cannot be used. An async call without ``url`` and ``aclient``, or
            a blocking call without ``url`` and ``client``, raises it too.

    Example:
        >>> store = RedisStore("redis://localhost:6379/0?prefix=shop:")
    """

    def __init__(
        self,
        url: str | ParsedAddress | None = None,
        prefix: str | None = None,
        timeout_us: int = 50_000,
        *,
        client: redis.Redis | None = None,
        aclient: redis.asyncio.Redis | None = None,
        credential_provider: CredentialProvider | None = None,
    ) -> None:
        if type(timeout_us) is not int or timeout_us < 1:
            raise ConfigError(f"timeout_us: expected a whole number of microseconds from 1; got {timeout_us!r}")
        if (url is None) == (client is None and aclient is None):
            raise ConfigError("expected either a URL, or client= and aclient=")
        if url is None and credential_provider is not None:
            raise ConfigError("credential_provider= needs a URL. A client has its own login")
        self._timeout = timeout_us / 1_000_000
        self._packed = PackedLimits()
        self._states: dict[asyncio.AbstractEventLoop, EventLoopState] = {}
        self._is_cluster = False
        self._keys = RedisKeys("rl:" if prefix is None else prefix)
        self._target: Target
        self._open_async: Callable[[], AsyncTarget] | None = None
        if url is None:
            if aclient is not None:
                shared = AsyncApplicationClient(aclient)
                self._open_async = lambda: shared
                self._target = LoopBridge(shared, self._states)
            if client is not None:
                self._target = ApplicationClient(client)
            return
        parsed = read_address(url)[1] if isinstance(url, str) else url
        if isinstance(url, str):
            self.name = redacted_url(url)
        self._keys = RedisKeys(parsed.prefix if prefix is None else prefix)
        self._address = address = _address(parsed, credential_provider)
        self._is_cluster = address.cluster
        self._target = (Cluster if address.cluster else Server)(address)
        self._open_async = partial(AsyncCluster if address.cluster else AsyncServer, address, self._timeout)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        deadline = time.monotonic() + self._timeout
        if self._fits_one_call(hits):
            decisions: list[Decision] = self._ask(HitOperation(hits, now, consume), deadline)
            return decisions
        context = self._context(deadline, time.monotonic)
        return run(apply_in_steps(hits, now, consume, context), lambda operation: self._ask(operation, deadline))

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        state = self._state()
        deadline = state.loop.time() + self._timeout
        if self._fits_one_call(hits):
            decisions: list[Decision] = await state.ask(HitOperation(hits, now, consume), deadline)
            return decisions
        context = self._context(deadline, state.loop.time)
        return await arun(apply_in_steps(hits, now, consume, context), lambda operation: state.ask(operation, deadline))

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        deadline = time.monotonic() + self._timeout
        context = self._context(deadline, time.monotonic)
        return run(correct_in_steps(changes, now, context), lambda operation: self._ask(operation, deadline))

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        state = self._state()
        deadline = state.loop.time() + self._timeout
        context = self._context(deadline, state.loop.time)
        return await arun(correct_in_steps(changes, now, context), lambda operation: state.ask(operation, deadline))

    def forget(self, keys: Iterable[str]) -> None:
        deadline = time.monotonic() + self._timeout
        steps = forget_in_steps(list(keys), self._context(deadline, time.monotonic))
        run(steps, lambda operation: self._ask(operation, deadline))

    async def aforget(self, keys: Iterable[str]) -> None:
        state = self._state()
        deadline = state.loop.time() + self._timeout
        steps = forget_in_steps(list(keys), self._context(deadline, state.loop.time))
        await arun(steps, lambda operation: state.ask(operation, deadline))

    def ping(self) -> None:
        """Raise ``StoreError`` unless every server of the store takes a write now."""
        deadline = time.monotonic() + self._timeout
        try:
            keys = self._target.probe_keys(self._slot, deadline) if isinstance(self._target, Cluster) else ["ping"]
        except Exception as error:
            raise as_store_error(error) from error
        for key in keys:
            self._ask(KeyOperation(PROBE, [key]), deadline)

    async def aping(self) -> None:
        """Async form of `ping`."""
        state = self._state()
        deadline = state.loop.time() + self._timeout
        try:
            async with asyncio.timeout_at(deadline):
                keys = await state.target.probe_keys(self._slot) if isinstance(state.target, AsyncCluster) else ["ping"]
        except Exception as error:
            raise as_store_error(error) from error
        for key in keys:
            await state.ask(KeyOperation(PROBE, [key]), deadline)

    def close(self) -> None:
        """Close idle connections. A client of the application stays open."""
        self._target.close()

    async def aclose(self) -> None:
        state = self._states.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.target.aclose()
        self.close()

    def _ask(self, operation: Operation, deadline: float) -> Any:
        message = self._new_message()
        operation.join(message)
        try:
            (result,) = read_reply((operation,), self._target.ask(message, deadline))
        except Exception as error:
            raise as_store_error(error) from error
        if isinstance(result, StoreError):
            raise result
        return result

    def _state(self) -> EventLoopState:
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            for closed in [each for each in list(self._states) if each.is_closed()]:
                self._states.pop(closed, None)
            if self._open_async is None:
                raise ConfigError("this RedisStore cannot make async calls. Pass aclient= as well, or a URL")
            keys = self._keys if self._is_cluster else None
            state = self._states[loop] = EventLoopState(self._open_async(), self._new_message, keys)
        return state

    def _new_message(self) -> Message:
        return Message(self._packed, self._keys)

    def _fits_one_call(self, hits: Sequence[Hit]) -> bool:
        for hit in hits:
            if self._packed[hit[0]] is None:
                return False
        return len(hits) == 1 or (not self._is_cluster and len(hits) > 1)

    def _context(self, deadline: float, clock: Callable[[], float]) -> RedisContext:
        slot = self._slot if self._is_cluster else lambda _key: 0
        return RedisContext(self._packed, slot, lambda: clock() < deadline)

    def _slot(self, key: str) -> int:
        return slot_of(self._keys(key))


def _address(parsed: ParsedAddress, provider: CredentialProvider | None) -> Address:
    """The address with all that needs redis-py."""
    address = parsed.address
    if provider is not None and (address.username or address.password):
        raise ConfigError("expected either a login in the URL or credential_provider=, not both")
    tls = None if parsed.tls is None else tls_context(parsed.tls)
    return replace(address, credential_provider=provider, tls=tls)


def open_address(parsed: ParsedAddress, timeout_us: int) -> RedisStore:
    return RedisStore(parsed, timeout_us=timeout_us)
