"""Queues of requests that wait for a slot, first come, first served: one for each key in this process.

Only the first request of a queue asks the store: when this process returns a slot, and at an interval, because other
processes return slots too.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ..clock import SECOND, monotonic
from ..decision import Correction, Verdict
from ..forksafe import create_lock
from ..rules.rule import Rule
from ..stores.blocking import Call, blocking_call, is_on_event_loop

_ASK_EVERY: Final = 0.1  # seconds

Ask = Callable[[bool], Awaitable[Verdict]]


class _Waiter:
    """A request that waits in its thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.wake, self.clear = self._event.set, self._event.clear

    async def wait(self, seconds: float) -> None:
        """Block the thread."""
        self._event.wait(seconds)


class _AsyncWaiter:
    """A request that waits on an event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.clear = self._event.clear

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class SlotQueues:
    """The queues of a limiter. ``now`` returns the time of its own clock; None without one."""

    def __init__(self, now: Callable[[], int | None]) -> None:
        self._now = now
        self._queues: dict[str, deque[_Waiter | _AsyncWaiter]] = {}
        self._lock = create_lock(self, "_lock", threading.Lock, SlotQueues._after_fork)

    def _after_fork(self, _intact: bool) -> None:
        self._queues = {}  # the requests wait in the parent

    async def decide(self, call: Call, rules: Mapping[str, Rule], ask: Ask) -> Verdict:
        """Decide a request, and wait for a slot where one of its rules has ``wait``.

        A blocking call on an event loop does not wait. A request that is cancelled leaves its queue.

        Args:
            call: ``blocking_call`` or ``async_call``.
            rules: The rules with ``wait``, each by the key of its slots.
            ask: Returns the verdict of the store. It consumes when the argument is True.
        """
        if call is not blocking_call:
            return await self._decide(rules, ask, _AsyncWaiter())
        return await self._decide(rules, ask, None if is_on_event_loop() else _Waiter())

    def free(self, corrections: Iterable[Correction]) -> None:
        """Wake the first request for each key that was corrected: a slot may be free."""
        if self._queues:
            with self._lock:
                for correction in corrections:
                    if queue := self._queues.get(correction.key):
                        queue[0].wake()

    def _first_queue(self, rules: Mapping[str, Rule]) -> str:
        """Return the key of a queue that a new request must not overtake, "" without one."""
        return next((key for key in rules if key in self._queues), "")

    async def _decide(self, rules: Mapping[str, Rule], ask: Ask, waiter: _Waiter | _AsyncWaiter | None) -> Verdict:
        passed, key = self._stopwatch(), self._first_queue(rules)
        if not key or waiter is None:
            verdict = await ask(True)
            key = next(iter(_blocking(verdict, rules)), "")
            if not key or waiter is None:
                return verdict
        if not self._join(key, waiter, rules[key]):
            return _reject(await ask(False), key)
        try:
            while True:
                is_first, seconds = self._queues[key][0] is waiter, rules[key].wait_us / SECOND
                if is_first or passed() >= seconds:
                    waiter.clear()
                    verdict = await ask(True)
                    blocking = _blocking(verdict, rules)
                    if not blocking or passed() >= min(rules[each].wait_us for each in blocking) / SECOND:
                        return verdict
                    if key not in blocking:
                        self._leave(key, waiter)
                        if not self._join(key := blocking[0], waiter, rules[key]):
                            return verdict
                        continue  # a slot may have been returned since
                left = seconds - passed()
                await waiter.wait(min(left, _ASK_EVERY) if is_first else left)
        finally:
            self._leave(key, waiter)

    def _join(self, key: str, waiter: _Waiter | _AsyncWaiter, rule: Rule) -> bool:
        """Add a request to a queue. Return False when the queue is full."""
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            if len(queue) < rule.max_waiting:
                queue.append(waiter)
                return True
            return False

    def _leave(self, key: str, waiter: _Waiter | _AsyncWaiter) -> None:
        """Remove a request from its queue, if it is in it. Then the next one is the first."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is None or waiter not in queue:
                return
            was_first = queue[0] is waiter
            queue.remove(waiter)
            if not queue:
                del self._queues[key]
            elif was_first:
                queue[0].wake()

    def _stopwatch(self) -> Callable[[], float]:
        """Return a function that returns the seconds since now, by the real time or by the limiter's own clock."""
        began, began_us = monotonic(), self._now()

        def passed() -> float:
            now = self._now()
            by_clock = 0.0 if now is None or began_us is None else (now - began_us) / SECOND
            return max(monotonic() - began, by_clock)

        return passed


def _blocking(verdict: Verdict, rules: Mapping[str, Rule]) -> list[str]:
    """Return the keys of the slots to wait for; none where another limit rejects too, or a wait does not help."""
    rejecting = verdict.rejected_by
    if all(d.hit[1] in rules and d.retry_us is not None and not (d.unavailable or d.banned) for d in rejecting):
        return [decision.hit[1] for decision in rejecting]
    return []


def _reject(verdict: Verdict, key: str) -> Verdict:
    """Return the verdict of a peek as the rejection of a request whose queue is full."""
    for decision in verdict.decisions:
        if decision.hit[1] == key:
            decision.allowed, decision.remaining, decision.retry_us = False, 0, SECOND
    verdict.allowed = False
    return verdict
