"""``RemoteStore``: the only place that decides who is asked about a request.

It asks in this order: the cached rejections, the leases, the circuit breaker, the store, and the fallback when the
store fails. All of them but the store are tables of this process, which make no calls.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn
from weakref import ref

from ... import clock as process
from ...clock import machine, monotonic, now_us
from ...decision import Correction, Decision, Hit, Limit
from ...errors import NoRoomError, RateLimitError, StateError, StoreError
from ...runtime.blocking import Call, PerLoop, async_call, blocking_call, run_blocking, twins
from ...runtime.forksafe import create_lock, run_in_child
from ...settings import Settings
from ...stores import MemoryStore, Store
from ...stores.url import redacted_url
from ...testmode import testmode
from ..clocks import Clocks
from ..followers.follower import Follower
from ..tasks import Tasks, completed
from .breaker import Breaker, NotAskedError
from .cache import Rejections
from .fallback import Fallback
from .fleet import Fleet
from .leases import LeasedRequest, Leases

_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class RemoteStore:
    """A store that processes share, and the parts of this process in front of it.

    The decisions may be fewer than the hits. Each decision has its own hit.
    """

    def __init__(self, store: Store, settings: Settings, clocks: Clocks, tasks: Tasks) -> None:
        self.store, self._now, self._tasks = store, clocks.now, tasks
        self.on_lost: Callable[[Sequence[Hit]], None] = lambda _: None
        """Receives hits that the store may have counted, or may still count, without a reply."""
        name = redacted_url(store)
        # With your own clock, the decisions of all stores are equal to the microsecond. Cached decisions are not.
        self.rejections = Rejections(settings.rejection_cache if clocks.own is None else 0)
        clock = clocks.own or _process_us
        self.leases = Leases(clock)
        self.uses_leases = False
        """Whether a rule may have leases."""
        self.breaker = Breaker(name)
        self.fleet = Fleet(store, settings.fleet_size)
        self.fallback = Fallback(name, settings.on_store_error, settings.fallback_keys, clock, self.fleet)
        self._last = self.fallback.last
        self.is_open = False
        """Whether this process has opened the store. The next decision opens it."""
        self.follower: Follower | None = None
        """Reads the overrides of the open store, by ``read`` and ``aread``."""
        self.on_call: Callable[[float, str], None] | None = None
        """Receives the seconds of a call that decides, and its result: "ok" or "error"."""
        self._opening = create_lock(self, "_opening", threading.Lock)
        self._turns = PerLoop(asyncio.Lock)
        self._logs_state_at = 0.0
        run_in_child(self, RemoteStore._start_over)
        atexit.register(_leave_at_exit, ref(self))

    def _start_over(self) -> None:
        self.is_open = False

    def start(self) -> None:
        """Open the store. If it is open, read the overrides again when that is due."""
        with self._opening:
            run_blocking(self._start(blocking_call))

    async def astart(self) -> None:
        """Async form of ``start``."""
        async with self._turns.get():
            await self._start(async_call)

    async def _start(self, call: Call) -> None:
        with suppress(RateLimitError):
            if not self.is_open:
                await call(self.store, "start")
            if self.follower is not None and monotonic() >= self.follower.due_at:
                await call(self.follower, "read")
        self.is_open = True

    async def decide(self, call: Call, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        """Decide all hits of a request at one instant. Consume the costs of all or none, or nothing for a peek."""
        if not self.is_open:
            await call(self, "start")
        at = _process_us()  # before the call, so that no rejection is kept beyond its time
        if consume and (known := self.rejections.recall(hits, at)):
            return known
        damaged_keys = 0
        try:
            while True:
                try:
                    if consume and self.uses_leases:
                        decisions = await self._serve(call, hits, now)
                    else:
                        decisions = await self._ask(call, hits, now, consume)
                    break
                except StateError as error:  # each key whose state cannot be decoded starts anew, once
                    damaged_keys += 1
                    if damaged_keys > len(hits):
                        raise
                    await self._forget_damaged(call, error, hits)
        except StoreError as error:
            if not isinstance(error, NotAskedError):
                self.on_lost(hits)
            return self.fallback.decide(hits, now, consume)
        except asyncio.CancelledError:
            self.on_lost(hits)
            raise
        return self.rejections.learn(decisions, at) if consume else decisions

    def recall(self, hits: Sequence[tuple[Limit, str, int]]) -> list[Decision]:
        """Return the decisions on a request that needs no call of the store; an empty list for another one."""
        return self.rejections.recall(hits, _process_us())

    async def _serve(self, call: Call, hits: Sequence[Hit], now: int | None) -> list[Decision]:
        """Serve hits from leases, or ask the store for them, or for shares in their place."""
        if served := self.leases.serve_all(hits):
            return served
        request = self.leases.begin(hits, self.breaker.open)
        asking = self._ask_for(call, request, now)
        if call is async_call and (request.shares or request.returns):
            # No share is lost when the caller is cancelled.
            await completed(self._tasks.start(asking))
        else:
            await asking
        return request.result

    async def _ask_for(self, call: Call, request: LeasedRequest, now: int | None) -> None:
        if request.returns:
            await self._correct_there(call, request.returns, now)
        while not request.result:
            self.leases.learn(request, await self._ask(call, request.asked, now, True))

    async def _ask(self, call: Call, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        """Ask the store while its breaker is closed. Learn what the process needs when the breaker opens."""
        breaker = self.breaker
        if breaker.open:
            self._reject_call()
        epoch, asked = breaker.epoch, hits
        began = monotonic()
        if consume and began >= self.fleet.due_at:
            asked = self.fleet.join(hits)
        try:
            if call is blocking_call:  # each request comes here, so the store is called by no name
                decisions = self.store.apply(asked, now, consume)
            else:
                decisions = await self.store.aapply(asked, now, consume)
        except StoreError as error:
            breaker.fail(error, epoch)
            if self.on_call is not None:
                self.on_call(monotonic() - began, "error")
            if isinstance(error, NoRoomError) and asked is not hits:  # there may be room without the announcement
                return await self._ask(call, hits, now, consume)
            raise
        if self.on_call is not None:
            self.on_call(monotonic() - began, "ok")
        if breaker.failures:
            breaker.succeed()
        if asked is not hits:
            decisions = self.fleet.learn(decisions)
        self._last.keep(decisions)
        return decisions

    async def _correct(self, call: Call, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Make the corrections of one verdict, where its hits were counted. Return the time of each."""
        try:
            if changes and changes[0].limit.local:
                return self.fallback.local.correct(changes, now)
            return await self._correct_there(call, changes, now)
        finally:
            self.rejections.forget(change.key for change in changes)

    correct, acorrect = twins(_correct)

    async def _correct_there(self, call: Call, changes: Sequence[Correction], now: int | None) -> list[int]:
        times: list[int] = await self._change(call, "correct", changes, now)
        self._last.correct(changes, times)
        return times

    async def _forget(self, call: Call, keys: Iterable[str]) -> None:
        """Delete states. It completes when the caller is cancelled."""
        forgetting = self._forget_all(call, list(keys))
        await (completed(self._tasks.start(forgetting)) if call is async_call else forgetting)

    forget, aforget = twins(_forget)

    async def _forget_all(self, call: Call, keys: Sequence[str]) -> None:
        """Delete states, and forget what this process knows of them, even when the store is unreachable."""
        try:
            await self._change(call, "forget", keys)
        finally:
            for part in (self.leases, self.fallback, self.rejections):
                part.forget(keys)

    async def _change(self, call: Call, operation: str, *arguments: Any) -> Any:
        """Return the result of an operation of the store that decides nothing, while its breaker is closed."""
        breaker = self.breaker
        if breaker.open:
            self._reject_call()
        epoch = breaker.epoch
        try:
            result = await call(self.store, operation, *arguments)
        except StoreError as error:
            breaker.fail(error, epoch)
            raise
        if breaker.failures:
            breaker.succeed()
        return result

    async def _close(self, call: Call) -> None:
        """Return all shares, leave the fleet, and close the store. If it does not reply, the shares are lost."""
        await self._leave_fleet(call)
        with suppress(StoreError):
            for changes in self.leases.return_all():
                await self._correct_there(call, changes, self._now())
        await call(self.store, "close")

    close, aclose = twins(_close)

    async def _leave_fleet(self, call: Call) -> None:
        """End the announcement of this process, within the time budget of a call. Without a reply it expires."""
        if leaving := self.fleet.leave():
            with suppress(RateLimitError):
                await self._correct_there(call, leaving, self._now())

    async def _forget_damaged(self, call: Call, error: StateError, hits: Sequence[Hit]) -> None:
        """Delete damaged states. Log it: no client can cause it, but a damaged store may have many such keys."""
        if (now := monotonic()) >= self._logs_state_at:
            self._logs_state_at = now + _LOG_EVERY
            rules = ", ".join(sorted({hit.limit.rule for hit in hits if hit.key in error.keys}))
            _log.warning("store %s: %s (rule %s); such keys start anew", self.breaker.name, error, rules)
        await call(self.store, "forget", error.keys)

    def _reject_call(self) -> NoReturn:
        """Raise ``NotAskedError``. When a probe is due, probe the store in a thread: an event loop may end first."""
        if self.breaker.takes_probe(now_us()):
            with suppress(RuntimeError):  # no thread can start now; the next interval tries again
                threading.Thread(target=self._probe, name="ratelimit_mw probe", daemon=True).start()
        raise NotAskedError(f"store {self.breaker.name} unreachable; the circuit breaker is open")

    def _probe(self) -> None:
        with suppress(StoreError):
            self.store.ping()
            self.breaker.recover(now_us())


RequestStore = MemoryStore | RemoteStore
"""The store as requests use it: itself in memory, else with what is in front of it."""


def _process_us() -> int:
    """Return what ``now_us`` returns, or the test's time, without a call of its own: most requests ask."""
    clock = testmode.clock
    return (machine.monotonic_ns() + process.WALL_AT_ZERO) // 1000 if clock is None else clock()


def _leave_at_exit(remote: ref[RemoteStore]) -> None:
    """Leave the fleet at the end of this process: a worker that its server replaces does not count."""
    if store := remote():
        with suppress(Exception):  # the interpreter may no longer start threads
            run_blocking(store._leave_fleet(blocking_call))
