"""The ``Limiter``: rules and a store behind one call. Knows nothing of HTTP.

Every method has an ``a`` twin for event loops. Both are a few lines around the same code without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from ..clock import Clock, checked_clock, now_us
from ..decision import Hit, Verdict
from ..errors import ConfigError, placed
from ..keys.features import Features
from ..quota import checked_cost
from ..rules.access_lists import ListVerdict
from ..rules.marks import Mark
from ..rules.plan import MissingKeyError, Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores import MemoryStore, Store, open_store
from ..testmode import testmode
from .failover import Answer, FailoverStore
from .leases import QuotaLeases
from .rejection_cache import RejectionCache
from .settlement import Settlement
from .slot import Slot

__all__ = ["Limiter"]


class Limiter:
    """Decides requests by rules.

    >>> from ratelimit_mw.testing import ManualClock
    >>> clock = ManualClock(1_000_000.0)
    >>> limiter = Limiter([Rule(name="api", limits="2/minute")], clock=clock)
    >>> [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(3)]
    [True, True, False]
    >>> clock.advance(limiter.peek({"ip": "192.0.2.7"}).retry_after)
    >>> limiter.hit({"ip": "192.0.2.7"}).allowed
    True

    ``store`` is an address or a ``Store``. A ``clock`` given here rules on every store; without one the store's
    own time counts. Raises ``ConfigError`` for rules or addresses that cannot mean anything.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        store: str | Store = "memory://",
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._everywhere = list(rules)
        self._marks: set[Mark] = set()
        self.settings = settings if settings is not None else Settings()
        self.rules = self._ruled()
        self._clock = None if clock is None else checked_clock(clock)
        with placed("store"):
            self.store = open_store(store, self.settings.store_timeout) if isinstance(store, str) else store
        if not isinstance(self.store, Store):
            raise ConfigError(f"expected the address of a store or a Store; got {store!r}", "store")
        self._memory = self.store if isinstance(self.store, MemoryStore) else None
        self._memory_clock = self._clock or (now_us if self._memory is None else self._memory.clock)
        self._steady = self._clock or _steady_us
        # Who gives a clock wants to the microsecond what the store says.
        self._rejections = RejectionCache(self.settings.rejection_cache if clock is None else 0)
        told = self.settings
        shared = (self.store, told.on_store_error, told.fleet_size, self._steady)
        self._shared = None if self._memory is not None else FailoverStore(*shared)
        self.breaker = None if self._shared is None else self._shared.breaker
        # Whether deciding may wait for I/O, so that an event loop has to await it.
        self.waits = self._shared is not None
        self._leases: QuotaLeases | None = None
        self._lease()
        self._check_limits()
        self._afterwards = Settlement(
            self.store, self._shared, self._rejections, self._now, lambda rule: self.rules.statuses(rule)
        )

    @classmethod
    def from_settings(
        cls, settings: str | PathLike[str] | Mapping[str, Any] | Settings, clock: Clock | None = None
    ) -> Limiter:
        """A limiter from a settings file, a dictionary or loaded ``Settings``."""
        loaded = settings if isinstance(settings, Settings) else load_settings(settings)
        return cls(loaded.rules, loaded.store, clock, loaded)

    def _ruled(self) -> RuleSet:
        told = self.settings
        return RuleSet(self._everywhere, self._marks, told.overrides, told.lists, told.secret)

    def _lease(self) -> None:
        """Have leases stand before a shared store where some rule has one."""
        leased = any(limit.lease for rule in self.rules.rules for limit in rule.all_limits())
        if leased and self._shared is not None and self._leases is None:
            self._leases = QuotaLeases(self._shared, self._steady)
        self._decides = self._leases or self._shared

    def adopt(self, marks: Iterable[Mark]) -> None:
        """For adapters, at start-up: decide what decorators marked, too.

        ``ConfigError`` for a name that stands twice, and for a settings rule that replaces one nobody gives.
        """
        self._marks |= set(marks)
        self.rules = self._ruled().complete()
        self._lease()
        self._check_limits()

    def _check_limits(self) -> None:
        """Raise ``ConfigError`` where a rule has a limit that the store cannot keep."""
        for rule in self.rules.rules:
            for limit in rule.all_limits():
                with placed(f"rule {limit.rule!r}"):
                    self.store.check(limit)

    # -- deciding ------------------------------------------------------------------------------------------

    def match(self, features: Features) -> Plan:
        """The plan for a request: which rules look at it."""
        get = features.get
        return self.rules.plan(get("method") or "", get("path") or "", get("host") or "")

    def hit(self, features: Features, cost: int | None = None) -> Verdict:
        """Decide a request and, when it is allowed, consume ``cost`` (each rule's own when None) on every limit."""
        return self.decide(self.match(features), features, cost)

    async def ahit(self, features: Features, cost: int | None = None) -> Verdict:
        return await self.adecide(self.match(features), features, cost)

    def peek(self, features: Features, cost: int | None = None) -> Verdict:
        """The answer that ``hit`` would give; nothing is consumed."""
        return self.decide(self.match(features), features, cost, consume=False)

    async def apeek(self, features: Features, cost: int | None = None) -> Verdict:
        return await self.adecide(self.match(features), features, cost, consume=False)

    def decide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        """``hit`` or ``peek`` for a plan that is known already. ``request`` is what cost functions are given."""
        if plan.single is not None and consume and self._memory is not None and not testmode.active:
            # One limit on the memory store: no list of hits, nothing to agree on.
            limit, key_of, own_cost = plan.single
            key = key_of(features)
            if key is None:
                return Verdict((), ())
            spending = own_cost if cost is None else checked_cost(cost)
            decision = self._memory.apply_one(limit, key, spending, self._memory_clock())
            return Verdict(((limit, key, spending),), (decision,), decision.allowed)
        if consume and self._leases is not None and (taken := self._taken(self._leases, plan, features, cost)):
            return taken
        hits = self._hits(plan, features, cost, request)
        if isinstance(hits, Verdict):
            return hits
        if self._decides is None:
            return Verdict.of(hits, self.store.apply(hits, self._now(), consume), consume)
        steady = self._steady()
        if consume and (known := self._rejections.recall(hits, steady)):
            return Verdict(*known, allowed=False)
        return self._answered(self._decides.apply(hits, self._now(), consume), consume, steady)

    async def adecide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        if self._decides is None:
            return self.decide(plan, features, cost, consume, request)
        if consume and self._leases is not None and (taken := self._taken(self._leases, plan, features, cost)):
            return taken
        hits = self._hits(plan, features, cost, request)
        if isinstance(hits, Verdict):
            return hits
        steady = self._steady()
        if consume and (known := self._rejections.recall(hits, steady)):
            return Verdict(*known, allowed=False)
        asked = self._asked(self._decides, hits, consume, steady)
        return await (self._afterwards.kept(asked) if consume and plan.has_slots else asked)

    async def _asked(
        self, decides: FailoverStore | QuotaLeases, hits: Sequence[Hit], consume: bool, steady: int
    ) -> Verdict:
        return self._answered(await decides.aapply(hits, self._now(), consume), consume, steady)

    def _taken(self, leases: QuotaLeases, plan: Plan, features: Features, cost: int | None) -> Verdict | None:
        """One limit out of a lease, with as little ado as in memory; None when it takes more."""
        if plan.single is None or testmode.off:
            return None
        limit, key_of, own_cost = plan.single
        key, spending = key_of(features), own_cost if cost is None else checked_cost(cost)
        if key is None or (decision := leases.take(limit, key, spending)) is None:
            return None
        return Verdict(((limit, key, spending),), (decision,))

    def _answered(self, answer: Answer, consume: bool, steady: int) -> Verdict:
        elsewhere = None if answer.store is self.store else answer.store
        verdict = Verdict.of(answer.hits, answer.decisions, consume, elsewhere, answer.unavailable)
        if consume and elsewhere is None:
            if verdict.allowed:
                self._rejections.consumed(answer.hits)
            else:
                self._rejections.note(answer.hits, answer.decisions, steady)
        return verdict

    def _hits(self, plan: Plan, features: Features, cost: int | None, request: Any) -> list[Hit] | Verdict:
        """The hits of a request, or its verdict where there is nothing to ask a store."""
        if testmode.off:
            return Verdict((), ())
        if cost is not None:
            checked_cost(cost)
        try:
            hits = plan.hits(features, cost, request)
            if testmode.active:
                hits = [hit._replace(key=self._own(hit.key)) for hit in hits]
            return hits or Verdict((), ())
        except MissingKeyError as rejection:
            return rejection.verdict(self._steady())
        except ListVerdict as listed:
            return listed.verdict()

    def _now(self) -> int | None:
        clock = self._clock or testmode.clock
        return None if clock is None else clock()

    def _own(self, key: str) -> str:
        """The key, apart from all others while a test has put this limiter on its clock."""
        return key if self._clock is not None else key + testmode.key_suffix

    # -- afterwards ----------------------------------------------------------------------------------------

    def refund(self, verdict: Verdict) -> None:
        """Give back what this verdict consumed, where it was counted; a second time, nothing."""
        self._afterwards.refund(verdict)

    async def arefund(self, verdict: Verdict) -> None:
        await self._afterwards.arefund(verdict)

    def settle(self, verdict: Verdict, cost: int) -> None:
        """Make ``cost`` what this verdict has consumed: the rest is given back, more is charged without asking.

        Slots of requests in flight stay as they are; they end with the request.
        """
        self._afterwards.settle(verdict, cost)

    async def asettle(self, verdict: Verdict, cost: int) -> None:
        await self._afterwards.asettle(verdict, cost)

    def slot(self, features: Features, cost: int | None = None) -> Slot:
        """``with`` or ``async with``: hold a slot of every concurrency rule that matches while the block runs.

        Raises ``RateLimitExceeded`` when a rule rejects. Other rules that match count the request, too.
        """
        return Slot(self, features, cost)

    def hold(self, verdict: Verdict) -> None:
        """Keep the slots of this verdict for as long as it takes; ``conclude`` gives them back."""
        self._afterwards.hold(verdict)

    def conclude(self, verdict: Verdict, status: int | None) -> None:
        """After the response: give slots back, apply the true cost that was stated, undo what does not count.

        ``status`` None: nobody knows how the request ended; what was reserved for its outcome stays consumed.
        """
        self._afterwards.conclude(verdict, status)

    async def aconclude(self, verdict: Verdict, status: int | None) -> None:
        await self._afterwards.aconclude(verdict, status)

    def reset(self, rule: str, features: Features) -> None:
        """Forget one key of one rule. ``ConfigError`` for a rule that nobody has and for a key that is unknown."""
        keys = self._keys(rule, features)
        self.store.forget(keys)
        self._forget(keys)

    async def areset(self, rule: str, features: Features) -> None:
        keys = self._keys(rule, features)
        await self.store.aforget(keys)
        self._forget(keys)

    def _forget(self, keys: Sequence[str]) -> None:
        """What this process knows of keys beside the store."""
        self._rejections.forget(keys)
        if self._leases is not None:
            self._leases.forget(keys)
        if self._shared is not None:
            self._shared.local.forget(keys)

    def _keys(self, rule: str, features: Features) -> list[str]:
        return [self._own(key) for key in self.rules.keys(rule, features)]

    def close(self) -> None:
        """Give back what leases have left and close the store; harmless when called twice."""
        self._afterwards.close()
        if self._leases is not None:
            self._leases.close(self._now())
        self.store.close()

    async def aclose(self) -> None:
        self._afterwards.close()
        if self._leases is not None:
            await self._leases.aclose(self._now())
        await self.store.aclose()


def _steady_us() -> int:
    """What passes in this process, for limiters that were given no clock."""
    clock = testmode.clock
    return now_us() if clock is None else clock()
