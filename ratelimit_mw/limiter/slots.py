"""``Slots``: takes the slots of concurrency limits, waits for them, renews them, and returns them.

Corrections go to the store through it, because each one may free a slot, or leave one that has to be returned later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import SECOND, monotonic, now_us
from ..decision import Correction, Hit, PendingCorrection, Receipt, SlotCost, Verdict
from ..errors import RateLimitError, StoreError
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, blocking_call, is_on_event_loop, run_blocking
from ..runtime.forksafe import create_lock
from ..runtime.heartbeat import Heartbeat
from .clocks import Clocks
from .remote.breaker import NotAskedError
from .remote.store import RequestStore
from .tasks import Tasks, future_result

_RETRY_EVERY: Final = 0.5  # seconds between two tries to return a slot
_CHECK_EVERY: Final = 1.0  # seconds between two checks for slots that were held too long
_MAX_UNRETURNED: Final = 10_000
_ASK_EVERY: Final = 0.1
"""The seconds between two calls for a slot, because other processes return slots, too."""

Ask = Callable[[Sequence[Hit], bool], Awaitable[Verdict]]
"""Asks the store about the hits of a request that waits. The call consumes if the other argument is True."""


class Slots:
    """The slots of the requests that run in this process."""

    def __init__(self, store: RequestStore, clocks: Clocks, tasks: Tasks) -> None:
        self._store, self._clocks, self._tasks = store, clocks, tasks
        self.queues = SlotQueues(clocks.now)
        texts = "renew or return slots", "such slots end within 60 s"
        self.renewals = Heartbeat(self._renew, SLOT_LIFE / SECOND / 3, *texts)
        self.returns = Heartbeat(self._return, _RETRY_EVERY, *texts)  # slots to return, each with its expiry
        texts = "return slots after hold_at_most", "they stay taken until their requests end"
        self.hold_ends = Heartbeat(self._end_hold, _CHECK_EVERY, *texts)  # slots by rule, each with the end of its hold

    async def send(self, call: Call, corrections: Sequence[Correction]) -> list[int]:
        """Send corrections, and wake a request that waits for a slot of theirs. Return the time of each."""
        times: list[int] = await call(self._store, "correct", corrections, self._clocks.now())
        self.queues.wake_first(corrections)
        return times

    async def settle(self, call: Call, receipt: Receipt, pending: Sequence[PendingCorrection]) -> None:
        """Send and confirm the corrections of a receipt.

        When the store fails, keep what may be sent later: corrections that were not sent, and slots by their id.
        """
        try:
            receipt.confirm(pending, await self.send(call, [each.correction for each in pending]))
        except StoreError as error:
            if isinstance(error, NotAskedError):
                receipt.cancel([each for each in pending if not each.correction.limit.quota.concurrent])
            self.return_later(pending)

    def return_later(self, pending: Iterable[PendingCorrection]) -> None:
        """Return the slots of corrections later, because they are not renewed any longer."""
        for each in pending:
            if each.correction.limit.quota.concurrent:
                self._return_later(each.correction, is_late=False)

    def hold(self, verdict: Verdict, rules: RuleSet) -> None:
        """Renew the slots of a verdict until ``release``, each for at most the ``hold_at_most`` of its rule."""
        names = {decision.rule for decision in verdict.decisions if decision.source.holds_slots}
        if names:
            self.renewals.hold(verdict)
        for name in names & rules.by_name.keys():
            self.hold_ends.hold((verdict, name, now_us() + rules.by_name[name].source.hold_us))

    def release(self, verdict: Verdict) -> None:
        """Stop renewing the slots of a verdict. The caller returns them."""
        self.renewals.release(verdict)

    def return_lost(self, hits: Iterable[Hit]) -> None:
        """Return the slots of hits that the store may have counted, or may still count, without a reply."""
        for limit, key, cost in hits:
            if isinstance(cost, SlotCost):
                self._return_later(Correction.return_slots(limit, key, cost), is_late=True)

    def close(self) -> None:
        """Return slots that wait for it once more, and stop all threads."""
        for slot in self.returns.items():
            self._return(slot)
        for heartbeat in (self.renewals, self.returns, self.hold_ends):
            heartbeat.close()

    def _return_later(self, correction: Correction, is_late: bool) -> None:
        if len(self.returns) < _MAX_UNRETURNED:
            self.returns.hold((correction, now_us() + SLOT_LIFE, is_late))

    def _renew(self, verdict: Verdict) -> None:
        if renewals := verdict.receipt.renewals():
            with suppress(RateLimitError):  # the circuit breaker logs it
                run_blocking(self.send(blocking_call, renewals))

    def _end_hold(self, slot: tuple[Verdict, str, int]) -> None:
        """Return the slots of a rule that a request has held for ``hold_at_most``."""
        verdict, rule, ends_at = slot
        receipt = verdict.receipt
        if not receipt.has_ended:
            if now_us() < ends_at:
                return
            pending = receipt.corrections(lambda d: 0 if d.quota.concurrent and d.rule == rule else None)
            run_blocking(self.settle(blocking_call, receipt, pending))
        self.hold_ends.release(slot)

    def _return(self, slot: tuple[Correction, int, bool]) -> None:
        correction, expires_at, is_late = slot
        try:
            run_blocking(self.send(blocking_call, [correction]))
        except RateLimitError:  # without its event loop, the client of an application raises ConfigError
            if now_us() < expires_at:
                return
        else:
            if is_late:  # the store may count the hit after this correction, which has overtaken it
                self.returns.hold((correction, expires_at, False))
        self.returns.release(slot)


class Waiter:
    """A request that waits for a slot, in its thread or on an event loop."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget that the request was woken."""
        woken: Future[None] = Future()
        woken.set_running_or_notify_cancel()  # a task that is cancelled does not cancel it
        self._woken = woken  # last, because another thread may wake the request now

    def wake(self) -> None:
        """Wake the request. The caller holds the lock of the queue."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def sleep(self, call: Call, seconds: float) -> None:
        """Wait until the request is woken."""
        with suppress(TimeoutError):
            await future_result(call, self._woken, seconds)


class SlotQueues:
    """Queues of requests that wait for a slot, first come, first served: one for each key in this process.

    Only the first request of a queue asks the store: when this process returns a slot, and at an interval, because
    other processes return slots too. ``now`` returns the time of the limiter's own clock; None without one.
    """

    def __init__(self, now: Callable[[], int | None]) -> None:
        self._now = now
        self._queues: dict[str, deque[Waiter]] = {}
        self._lock = create_lock(self, "_lock", threading.Lock, SlotQueues._after_fork)

    def _after_fork(self, _intact: bool) -> None:
        self._queues = {}  # the requests wait in the parent

    def wake_first(self, corrections: Iterable[Correction]) -> None:
        """Wake the first request for each key that was corrected: a slot may be free."""
        if self._queues:
            with self._lock:
                for correction in corrections:
                    if queue := self._queues.get(correction.key):
                        queue[0].wake()

    async def decide(self, call: Call, plan: Plan, hits: Sequence[Hit], ask: Ask) -> Verdict:
        """Decide a request, and wait for a slot where one of its rules has ``wait``.

        A blocking call on an event loop does not wait. A request that is cancelled leaves its queue.
        """
        if call is blocking_call and is_on_event_loop():
            return await ask(hits, True)
        waiting = {rule.name: rule.source for rule in plan.rules if rule.source.wait_us}
        names = {hit.key: hit.limit.rule for hit in hits if hit.limit.quota.concurrent}
        rules = {key: waiting[name] for key, name in names.items() if name in waiting}
        began, began_us = monotonic(), self._now()

        def seconds_left(key: str) -> float:
            """Return the seconds that are left, by the real time or by the limiter's own clock."""
            now = self._now()
            by_clock = 0.0 if now is None or began_us is None else (now - began_us) / SECOND
            return rules[key].wait_us / SECOND - max(monotonic() - began, by_clock)

        waiter = Waiter()
        key = next((key for key in rules if key in self._queues), "")  # a new request does not overtake
        if key and not self._join(key, waiter, rules[key]):
            return _reject(await ask([hit._replace(cost=0) for hit in hits], False), key)
        try:
            while True:
                is_first = not key or self._queues[key][0] is waiter
                if is_first or seconds_left(key) <= 0:
                    waiter.clear()
                    verdict = await ask(hits, True)
                    blocking = _blocking(verdict, rules)
                    if not blocking or min(map(seconds_left, blocking)) <= 0:
                        return verdict
                    if key not in blocking:
                        self._leave(key, waiter)
                        if not self._join(key := blocking[0], waiter, rules[key]):
                            return verdict
                        continue  # a slot may have been returned since
                await waiter.sleep(call, min(seconds_left(key), _ASK_EVERY) if is_first else seconds_left(key))
        finally:
            self._leave(key, waiter)

    def _join(self, key: str, waiter: Waiter, rule: Rule) -> bool:
        """Add a request to a queue. Return False when the queue is full."""
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            if len(queue) < rule.max_waiting:
                queue.append(waiter)
                return True
            return False

    def _leave(self, key: str, waiter: Waiter) -> None:
        """Remove a request from its queue, if it is in it. Then the next one is the first."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is None or waiter not in queue:
                return
            was_first = queue[0] is waiter
            queue.remove(waiter)
            if not queue:
                del self._queues[key]
            elif was_first:  # others would ask the store once more for each request that leaves
                queue[0].wake()


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
