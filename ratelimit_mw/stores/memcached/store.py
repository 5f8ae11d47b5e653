"""``MemcachedStore`` carries out the steps of a call, blocking or awaiting, within its time budget."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from ssl import SSLContext
from typing import Final, TypeVar, cast

from ...algorithms.limit import Limit
from ...clock import Clock
from ...decision import Decision, Hit
from ...errors import ConfigError, StoreError
from ...forksafe import run_in_child
from ...receipt import Correction
from ..base import Store
from ..per_loop import PerLoop
from . import steps
from .address import MemcachedAddress
from .batch import OptimisticBatch
from .client.aconnection import MemcachedConnections
from .client.connection import MemcachedPool
from .client.protocol import KeyCommands, KeyReply
from .client.servers import MemcachedAccess, MemcachedServer, Rendezvous, parse_servers
from .keys import KeyNames
from .record import MAX_ENTRIES
from .steps import Backoff, RacingCall, StepContext, Steps
from .tls import build_tls_context

T = TypeVar("T")

_LOCKS: Final = 64  # keys share these locks
_MAX_GENERATIONS: Final = 10_000  # keys whose generation is kept in this process


def wall_us() -> int:
    """Return microseconds since 1970 by the wall clock, the clock that several machines can agree on."""
    return time.time_ns() // 1000


class MemcachedStore(Store):
    """Keep states in one or several Memcached servers that all processes share.

    Args:
        servers: For example ``"10.0.0.1:11211,10.0.0.2:11211"``.
        prefix: The start of all names in the servers.
        timeout_us: The time budget of a call in microseconds.
        clock: The time in microseconds for calls without a time. The clocks of all processes must agree.
        username: The user name for servers with ``-Y``.
        password: The password for servers with ``-Y``.
        tls: The context for servers with TLS, from ``ssl.create_default_context``.

    Raises:
        ConfigError: For arguments that cannot be used.
    """

    def __init__(
        self,
        servers: str | Sequence[MemcachedServer],
        prefix: str = "rl:",
        timeout_us: int = 50_000,
        clock: Clock = wall_us,
        *,
        username: str = "",
        password: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        if type(timeout_us) is not int or timeout_us < 1:
            raise ConfigError(f"timeout_us is a whole number of microseconds from 1 on; got {timeout_us!r}")
        self._rendezvous = Rendezvous(parse_servers(servers) if isinstance(servers, str) else servers)
        scheme = "memcached" if tls is None else "memcacheds"
        self.name = f"{scheme}://{','.join(map(str, self._rendezvous.servers))}"
        self._names = KeyNames(prefix)
        self._access = MemcachedAccess(tls, username, password)
        self._timeout = timeout_us / 1_000_000
        self._clock = clock
        self._generations: dict[bytes, bytes] = {}
        self._pool = MemcachedPool(self._access)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._connections = PerLoop(lambda: MemcachedConnections(self._access, self._timeout))
        self._batches: PerLoop[dict[frozenset[MemcachedServer], OptimisticBatch]] = PerLoop(dict)
        run_in_child(self, MemcachedStore._start_over)

    def _start_over(self) -> None:
        """Drop the connections and the locks of the parent process."""
        self._pool.close()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def check(self, limit: Limit) -> None:
        if limit.limit > MAX_ENTRIES and type(limit.algorithm) in steps.LOGS:
            raise ConfigError(
                f"sliding-window-log keeps at most {MAX_ENTRIES} entries per key on Memcached; got '{limit.quota}'."
                ' Use algorithm = "tiered-window"'
            )

    # -- blocking ------------------------------------------------------------------------------------------

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not hits:
            return []
        context = self._context()
        return self._run(steps.decide(self._call(hits, now, context), consume, context), context.due)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        context = self._context()
        return self._run(steps.correct(changes, now, context), context.due)

    def forget(self, keys: Iterable[str]) -> None:
        context = self._context()
        self._run(steps.forget(keys, context), context.due)

    def ping(self) -> None:
        context = self._context()
        self._run(steps.ping(context), context.due)

    def close(self) -> None:
        self._pool.close()

    def _run(self, flow: Steps[T], due: float) -> T:
        try:
            with ExitStack() as locks:
                step = next(flow)
                while True:
                    step = flow.send(self._carry_out(step, due, locks))
        except StopIteration as done:
            return cast(T, done.value)
        except StoreError:
            raise
        except Exception as error:
            return _end(flow, error)

    def _carry_out(self, step: list[KeyCommands] | Backoff, due: float, locks: ExitStack) -> list[KeyReply]:
        if isinstance(step, list):
            return self._pool.exchange(step, due)
        for index in sorted({hash(token) % _LOCKS for token in step.tokens}):  # all threads use this order
            if not self._locks[index].acquire(timeout=max(0, step.until - time.monotonic())):
                break
            locks.callback(self._locks[index].release)
        if not step.tokens:
            time.sleep(steps.pause())
        return []

    # -- awaiting ------------------------------------------------------------------------------------------

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not hits:
            return []
        context = self._context()
        call = self._call(hits, now, context)
        if not consume:
            await self._arun(steps.attempt([call], context, consume=False), context.due)
            return call.result()
        batch = self._batch(call.tokens)
        if batch.enter(call.tokens):
            began = time.monotonic()
            try:
                await self._arun(steps.attempt([call], context), context.due)
            finally:
                batch.leave(call.tokens)
            if call.is_done:
                return call.result()
            call.races.lose(time.monotonic() - began)
        return await batch.decide(call)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        context = self._context()
        return await self._arun(steps.correct(changes, now, context), context.due)

    async def aforget(self, keys: Iterable[str]) -> None:
        context = self._context()
        await self._arun(steps.forget(keys, context), context.due)

    async def aping(self) -> None:
        context = self._context()
        await self._arun(steps.ping(context), context.due)

    async def aclose(self) -> None:
        self._connections.get().close()
        self.close()

    def _batch(self, tokens: Sequence[bytes]) -> OptimisticBatch:
        batches, servers = self._batches.get(), frozenset(map(self._rendezvous.server_of, tokens))
        batch = batches.get(servers)
        if batch is None:
            for idle in [each for each in batches if batches[each].is_idle]:
                del batches[idle]
            batch = batches[servers] = OptimisticBatch(self._attempt)
        return batch

    async def _attempt(self, calls: Sequence[RacingCall], due: float) -> None:
        await self._arun(steps.attempt(calls, self._context(due)), due)

    async def _arun(self, flow: Steps[T], due: float) -> T:
        connections = self._connections.get()
        try:
            async with asyncio.timeout(due - time.monotonic()):
                step = next(flow)
                while True:
                    if isinstance(step, list):
                        step = flow.send(await connections.exchange(step))
                    else:  # on an event loop batches take the place of turns
                        await asyncio.sleep(steps.pause())
                        step = flow.send([])
        except StopIteration as done:
            return cast(T, done.value)
        except StoreError:
            raise
        except Exception as error:
            return _end(flow, error)

    # -- both ----------------------------------------------------------------------------------------------

    def _call(self, hits: Sequence[Hit], now: int | None, context: StepContext) -> RacingCall:
        for hit in hits:
            if hit.limit.limit > MAX_ENTRIES:
                self.check(hit.limit)
        return context.call(hits, now)

    def _context(self, due: float | None = None) -> StepContext:
        if len(self._generations) > _MAX_GENERATIONS:
            self._generations.clear()  # they are read again
        due = time.monotonic() + self._timeout if due is None else due
        return StepContext(self._rendezvous, self._names, self._clock, self._generations, due, self._timeout)


def _end(flow: Steps[T], error: Exception) -> T:
    """End the steps after an error: with a result where the time is over and a race was lost before."""
    try:
        if isinstance(error, TimeoutError):
            flow.throw(error)
    except StopIteration as done:
        return cast(T, done.value)
    except TimeoutError:
        pass
    raise steps.as_store_error(error) from error


def open_address(parsed: MemcachedAddress, timeout_us: int) -> MemcachedStore:
    """Open the store of a parsed store URL."""
    return MemcachedStore(
        parsed.servers,
        parsed.prefix,
        timeout_us,
        username=parsed.username,
        password=parsed.password,
        tls=None if parsed.tls is None else build_tls_context(parsed.tls),
    )
