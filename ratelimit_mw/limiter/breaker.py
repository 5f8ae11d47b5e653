"""The circuit breaker: ``BreakerStore`` stops calls to a store that fails, and probes it until it replies again."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..clock import SECOND, now_us
from ..decision import Decision, Hit
from ..errors import StateError, StoreError
from ..forksafe import create_lock
from ..receipt import Correction
from ..stores import Store
from .fleet import Fleet
from .link import ChainLink

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_MAX_FAILURES: Final = 3
_FIRST_PROBE: Final = SECOND // 4
_LAST_PROBE: Final = SECOND
_log = logging.getLogger("ratelimit_mw")


class NotAskedError(StoreError):
    """The circuit breaker is open, so the store was not asked."""


LastDecision = tuple[int, int, int]
"""The rest that a decision left, and its ``at_us`` and ``reset_us``."""


class LastDecisions:
    """The last decision of the store on each key. Bounded: it has two generations of keys."""

    def __init__(self, max_keys: int) -> None:
        self._part = max(1, max_keys // 2)
        self._young: dict[str, LastDecision] = {}
        self._old: dict[str, LastDecision] = {}

    def keep(self, decisions: Sequence[Decision]) -> None:
        young = self._young
        for decision in decisions:
            # Numbers alone: the garbage collector does not visit them.
            young[decision.hit[1]] = (decision.remaining, decision.at_us, decision.reset_us)
        if len(young) >= self._part:
            self._old, self._young = young, {}

    def pop(self, key: str) -> LastDecision | None:
        old = self._old.pop(key, None)
        return self._young.pop(key, old)


class BreakerStore(ChainLink):
    """Asks a store while its circuit breaker is closed, and raises ``NotAskedError`` while the breaker is open.

    The breaker opens after three failures in a row. The first probe is due 0.25 s later; the interval doubles up to
    1 s. Each interval is shortened by up to a fifth at random, so that the processes of a fleet do not probe together.
    """

    def __init__(self, store: Store, policy: str, fleet_size: int | None, max_keys: int) -> None:
        super().__init__(store)
        self.fleet = Fleet(store, fleet_size)
        self.last = LastDecisions(max_keys)
        self.name = store.name or type(store).__name__
        self._policy = policy
        self._policies: dict[str, str] = {}
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._opened_at = self._probe_at = self._interval = 0
        self.open = False
        self.openings = 0  # how often the breaker has opened, for metrics
        self.failures = 0  # in a row so far
        # Changes with each failure that counts and each recovery. Note it before a call and pass it to
        # ``count_failure``: concurrent calls count as one failure, a call from before a recovery as none.
        self.epoch = 0

    def check(self, limit: Limit) -> None:
        self._policies[limit.rule] = limit.on_store_error or self._policy
        self.store.check(limit)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if self.open:
            self.reject_call()
        epoch, asked = self.epoch, hits
        if consume and monotonic() >= self.fleet.due_at:
            asked = self.fleet.join(hits)
        try:
            decisions = self.store.apply(asked, now, consume)
        except StoreError as error:
            self.record_failure(error, epoch)
            raise
        return self._learn(decisions, asked is not hits)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if self.open:
            self.reject_call()
        epoch, asked = self.epoch, hits
        if consume and monotonic() >= self.fleet.due_at:
            asked = self.fleet.join(hits)
        try:
            decisions = await self.store.aapply(asked, now, consume)
        except StoreError as error:
            self.record_failure(error, epoch)
            raise
        return self._learn(decisions, asked is not hits)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            return self.store.correct(changes, now)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            return await self.store.acorrect(changes, now)

    def _learn(self, decisions: list[Decision], is_announcement: bool) -> list[Decision]:
        if self.failures:
            self.failures = 0
        if is_announcement:
            decisions = self.fleet.learn(decisions)
        self.last.keep(decisions)
        return decisions

    def reject_call(self) -> None:
        """Raise ``NotAskedError``. When a probe is due, probe the store in a thread: an event loop may end first."""
        if self.takes_probe(now_us()):
            with suppress(RuntimeError):  # no thread can start now; the next interval tries again
                threading.Thread(target=self._probe, name="ratelimit_mw probe", daemon=True).start()
        raise NotAskedError(f"store {self.name} unreachable; the circuit breaker is open")

    def record_failure(self, error: StoreError, epoch: int) -> None:
        """Count a failed call. Log it when it opens the breaker. A store that replies has not failed."""
        if isinstance(error, StateError):
            self.failures = 0
        elif self.count_failure(epoch, now_us()):
            wait = (self._probe_at - self._opened_at) / SECOND
            counts = Counter(self._policies.values()).most_common()
            policies = ", ".join(f"{count} {'rule' if count == 1 else 'rules'} {policy}" for policy, count in counts)
            effect = f"applying on_store_error: {policies}; next probe in {wait:.1f} s"
            _log.warning("store %s unreachable (%s); %s", self.name, error, effect)

    def count_failure(self, epoch: int, now: int) -> bool:
        """Count a failed call. Return True when it opens the breaker."""
        with self._lock:
            if epoch != self.epoch:
                return False
            self.epoch += 1
            self.failures += 1
            if self.open or self.failures < _MAX_FAILURES:
                return False
            self.open, self._opened_at = True, now
            self.openings += 1
            self._schedule_probe(now, _FIRST_PROBE)
            return True

    def takes_probe(self, now: int) -> bool:
        """Return True when the caller must probe the store now. One caller at a time gets True."""
        with self._lock:
            if not self.open or now < self._probe_at:
                return False
            self._schedule_probe(now, min(2 * self._interval, _LAST_PROBE))
            return True

    def recover(self, now: int) -> int:
        """Close the breaker after a probe that succeeded. Return how long it was open, 0 when it was closed."""
        with self._lock:
            self.failures = 0
            if not self.open:
                return 0
            self.open = False
            self.epoch += 1
            return now - self._opened_at

    def _schedule_probe(self, now: int, interval: int) -> None:
        jitter = random.randrange(interval // 5)  # noqa: S311 - it spreads probes and hides nothing # nosec B311
        self._interval, self._probe_at = interval, now + interval - jitter

    def _probe(self) -> None:
        with suppress(StoreError):
            self.store.ping()
            if passed := self.recover(now_us()):
                _log.warning("store %s reachable again after %.1f s", self.name, passed / SECOND)


class _Call:
    """One correction: rejected while the breaker is open, else its outcome is counted. ``apply`` does so without it."""

    __slots__ = ("_breaker", "_epoch")

    def __init__(self, breaker: BreakerStore) -> None:
        self._breaker = breaker

    def __enter__(self) -> None:
        if self._breaker.open:
            self._breaker.reject_call()
        self._epoch = self._breaker.epoch

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            self._breaker.record_failure(error, self._epoch)
        elif error is None and self._breaker.failures:
            self._breaker.failures = 0
