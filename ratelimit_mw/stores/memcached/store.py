"""``MemcachedStore`` carries out the steps of a call, blocking or awaiting, within its time budget."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from ssl import SSLContext
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from ...algorithms.limit import Limit
from ...clock import Clock, machine
from ...errors import ConfigError, RateLimitError, StoreError
from ...forksafe import run_in_child
from ...receipt import Correction
from ..base import Facts
from ..blocking import run_blocking
from ..budget import STARTING, LoopClock, ThreadClock
from ..per_loop import PerLoop
from ..twins import TwinStore
from ..unmade import UnmadeCorrections
from . import steps
from .address import MemcachedAddress, build_tls_context
from .client.connections import MemcachedConnections
from .client.servers import MemcachedAccess, MemcachedServer, Rendezvous, parse_servers
from .keys import KeyNames
from .races import Races, as_store_error, check_entries
from .record import StepContext
from .steps import Steps, T

_LOCKS: Final = 64  # keys share these locks
_FACTS_SECONDS: Final = 1.5
_MAX_GENERATIONS: Final = 10_000  # keys whose generation is kept in this process


def wall_us() -> int:
    """Return microseconds since 1970 by the wall clock, the clock that several machines can agree on."""
    return machine.time_ns() // 1000


class MemcachedStore(TwinStore):
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
            raise ConfigError(f"timeout_us: expected a whole number of microseconds from 1; got {timeout_us!r}")
        self._rendezvous = Rendezvous(parse_servers(servers) if isinstance(servers, str) else servers)
        self.name = f"memcached{'s' if tls else ''}://{','.join(map(str, self._rendezvous.servers))}"
        self._names = KeyNames(prefix)
        self._access = MemcachedAccess(tls, username, password)
        self._timeout = timeout_us / 1_000_000
        self._clock = clock
        self._generations: dict[bytes, bytes] = {}
        self._budget = ThreadClock(self._timeout)
        self._pool = MemcachedConnections(self._access, self._budget)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._unmade = UnmadeCorrections(self._correct_again)
        self._loops = PerLoop(self._open_loop)
        run_in_child(self, MemcachedStore._start_over)

    def _start_over(self) -> None:
        """Drop the locks of the parent process."""
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def check(self, limit: Limit) -> None:
        check_entries(limit)

    _apply = staticmethod(steps.decide)
    _correct = staticmethod(steps.correct)
    _forget = staticmethod(steps.forget)
    _read_record = staticmethod(steps.read_record)
    _write_record = staticmethod(steps.write_record)
    _ping = staticmethod(steps.ping)

    def start(self) -> None:
        self._run(steps.ping, due=self._budget.now + max(self._timeout, STARTING))

    def facts(self) -> Iterator[Facts]:
        for server in self._rendezvous.servers:
            try:
                values = run_blocking(self._pool.stats(server, self._budget.now + _FACTS_SECONDS))
                yield Facts("memcached", str(server), values)
            except Exception as error:
                yield Facts("memcached", str(server), {}, str(as_store_error(error)), False)

    def close(self) -> None:
        self._unmade.close()
        self._pool.close()

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> list[Correction]:
        left: list[Correction] = []

        def correct(context: StepContext) -> Steps[list[int]]:
            return steps.correct(context._replace(leave=lambda unmade, _: left.extend(unmade)), changes, now)

        with suppress(StoreError):  # corrections that the server may have made are not left
            self._run(correct)
        return left

    def _run(self, work: Callable[..., Steps[T]], *arguments: Any, due: float | None = None) -> T:
        context = self._context(self._budget, due)
        flow = work(context, *arguments)
        try:
            with ExitStack() as locks:
                step = next(flow)
                while True:
                    if isinstance(step, Races):
                        self._wait(step, locks)
                    exchange = [] if isinstance(step, Races) else run_blocking(self._pool.exchange(step, context.due))
                    step = flow.send(exchange)
        except Exception as error:
            return _end(flow, error)

    def _wait(self, races: Races, locks: ExitStack) -> None:
        """Wait before another attempt: after the first lost race for a turn at the keys, later for a pause."""
        if not races.lost:
            return
        tokens = races.tokens if races.lost == 1 else ()
        for index in sorted({hash(token) % _LOCKS for token in tokens}):  # all threads use this order
            try:
                self._budget.wait(partial(_acquire, self._locks[index]), races.last)
            except TimeoutError:
                break
            locks.callback(self._locks[index].release)
        if not tokens:
            time.sleep(races.pause)

    async def astart(self) -> None:
        await self._arun(steps.ping, due=self._loops.get().clock.now + max(self._timeout, STARTING))

    async def aclose(self) -> None:
        self._loops.get().connections.close()
        await self._unmade.aclose()
        self.close()

    async def _arun(self, work: Callable[..., Steps[T]], *arguments: Any, due: float | None = None) -> T:
        loop = self._loops.get()
        context = self._context(loop.clock, due)
        flow = work(context, *arguments)
        try:
            async with AsyncExitStack() as turns:
                step = next(flow)
                while True:
                    if isinstance(step, list):
                        step = flow.send(await loop.connections.exchange(step, context.due))
                        loop.trips += 1
                    else:
                        await loop.wait(step, turns, context.due)
                        step = flow.send([])
        except Exception as error:
            return _end(flow, error)

    def _open_loop(self) -> _Loop:
        clock = LoopClock(self._timeout)
        return _Loop(clock, MemcachedConnections(self._access, clock))

    def _context(self, clock: ThreadClock | LoopClock, due: float | None = None) -> StepContext:
        if len(self._generations) > _MAX_GENERATIONS:
            self._generations.clear()  # they are read again
        due = clock.now + self._timeout if due is None else due
        parts = self._rendezvous, self._names, self._clock, self._generations
        return StepContext(*parts, lambda: clock.now, due, self._timeout, self._unmade.keep)


class _Loop:
    """The clock and the connections of one event loop, and the turns of its tasks at a key."""

    def __init__(self, clock: LoopClock, connections: MemcachedConnections) -> None:
        self.clock = clock
        self.connections = connections
        self.trips = 0
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def wait(self, races: Races, turns: AsyncExitStack, due: float) -> None:
        """Wait for a turn at the keys before the first attempt, so that tasks do not race. Later wait for a pause."""
        if races.lost:
            await asyncio.sleep(races.pause)
            return
        trips = self.trips
        try:
            for token in sorted(set(races.tokens)):  # all tasks use this order
                lock = self._turns.get(token) or self._turns.setdefault(token, asyncio.Lock())
                await (self.clock.within(lock.acquire(), due) if lock.locked() else lock.acquire())
                turns.callback(lock.release)
        except BaseException:
            races.is_outrun = self.trips > trips
            raise


def _acquire(lock: threading.Lock, seconds: float) -> None:
    if not lock.acquire(timeout=seconds):
        raise TimeoutError


def _end(flow: Steps[T], error: Exception) -> T:
    """Return the result of the steps: after an error only where the time is over and a race was lost before."""
    if isinstance(error, StopIteration):
        return cast(T, error.value)
    try:
        flow.throw(error)
    except StopIteration as done:
        return cast(T, done.value)
    except RateLimitError:
        raise
    except Exception as thrown:
        error = thrown
    raise as_store_error(error) from error


def open_address(parsed: MemcachedAddress, timeout_us: int) -> MemcachedStore:
    tls = None if parsed.tls is None else build_tls_context(parsed.tls)
    access = parsed.access
    return MemcachedStore(
        parsed.servers, parsed.prefix, timeout_us, username=access.username, password=access.password, tls=tls
    )
