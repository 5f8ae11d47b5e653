"""``Limiter``: rules and a store behind one call. It knows nothing of HTTP.

Each method that may wait for the store has an async twin, whose name starts with ``a``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from ..clock import Clock, checked_clock, monotonic
from ..decision import EarlyVerdict, Hit, Verdict, build_verdict, make_hit, name_slots, with_added_hits
from ..errors import error_of, error_path
from ..keys.features import Features
from ..quota import checked_cost
from ..rules.lookup import Found, LimitsCall, arun, run
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..settings import Settings, SettingsSource, checked_source, with_options
from ..settings.values import checked_observers
from ..stores import MemoryStore, Store, open_store
from ..stores.blocking import Call, async_call, blocking_call, twins
from ..testmode import process_clock, testmode
from .clients import Clients
from .observers.observers import Observer, Observers
from .observers.traffic import check_eviction, feed_of
from .overrides.overrides import RunTimeOverrides
from .overrides.reader import OverrideReader, keeps_records
from .reloader import reloader_of
from .reloads import Reloads
from .remote.store import RemoteStore
from .resets import Resets
from .settlement import Settlement
from .slots.slots import Slots


class Limiter(RunTimeOverrides, Reloads, Resets, Slots, Settlement):
    """Decides requests by rules.

    Args:
        rules: The rules, instead of those of the settings. All rules that match a request apply together.
        store: A store URL, for example ``"redis://cache:6379/0"``, or a ``Store``, instead of the store of the
            settings, which is ``"memory://"`` by default.
        clock: A function that returns whole microseconds since 1970. It replaces the clock of every store. By default,
            the store's own time is used.
        settings: Settings from ``load_settings``. Default: each setting has its default.
        observers: Functions of an ``Event``, instead of those of the settings. Each is called once for every request.

    Raises:
        ConfigError: A rule, the store URL or an option of the store is invalid.
        MissingExtraError: The library of the store is not installed.

    Example:
        >>> from ratelimit_mw.testing import ManualClock
        >>> clock = ManualClock(1_000_000.0)
        >>> limiter = Limiter([Rule(name="api", limits="2/minute")], clock=clock)
        >>> [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(3)]
        [True, True, False]
        >>> clock.advance(limiter.peek({"ip": "192.0.2.7"}).retry_after)
        >>> limiter.hit({"ip": "192.0.2.7"}).allowed
        True

    Attributes:
        settings: The settings.
        rules: The rules, compiled.
        store: The store.
        clients: The ``Clients``: its methods show, reset and ban single clients, and override their limits.
        breaker: The circuit breaker of the store, None for the memory store.
        is_observed: Whether the limiter has observers.
        traffic_log: The traffic log that counts the outcomes, None without the setting.
        waits: Whether a decision may wait for I/O. Then an event loop must use the async methods.
    """

    def __init__(
        self,
        rules: Iterable[Rule] | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer | str] | None = None,
    ) -> None:
        super().__init__(rules, settings)
        self._clock = None if clock is None else checked_clock(clock)
        self._time = self._clock or process_clock
        given = {"store": store, "observers": observers}
        arguments = [name for name, value in given.items() if value is not None]
        with self.located(*arguments), error_path("store"):
            self.store = open_store(self.settings.store if store is None else store, self.settings.store_timeout)
        self._memory = self.store if isinstance(self.store, MemoryStore) else None
        self.waits = self._memory is None
        self._override_reader = OverrideReader(self) if keeps_records(self.store) else None
        if self._memory is not None:
            self._counts = self._memory
        else:
            # With your own clock, the decisions of all stores are equal to the microsecond. Cached decisions are not.
            options = (self._time, self._now, self._slots.lose, self._policies, clock is None)
            self._counts = self._remote = RemoteStore(self.store, self.settings, *options)
            self._remote.follower, self._remote.opened = self._override_reader, self._note_opened
        self.breaker = self._remote.breaker if self._remote else None
        with self.located(*arguments):
            with error_path("observers"):
                functions = self.settings.observers if observers is None else checked_observers(observers)
            with error_path("traffic_log"):
                feed = feed_of(self)
            self.traffic_log = None if feed is None else feed.log
            functions = (*functions, *filter(None, [feed]))
            self.observers = Observers(functions, self.settings.event_features, self.store)
            self.is_observed = bool(functions)
            self._check(self.rules)
        self.clients = Clients(self)
        self.reloader = reloader_of(self)
        self._follow_overrides()
        self.watch = self.watch_of(self.settings)

    @classmethod
    def from_settings(
        cls,
        settings: SettingsSource,
        clock: Clock | None = None,
        store: str | Store | None = None,
        observers: Sequence[Observer | str] | None = None,
    ) -> Limiter:
        """Return a limiter with the rules and the store of settings.

        Args:
            settings: The path of a settings file, a dictionary, or loaded ``Settings``.
            clock: As for ``Limiter``.
            store: A store URL or a ``Store``, instead of the store of the settings.
            observers: As for ``Limiter``.

        Raises:
            ConfigError: A setting is invalid. The message names the file and the line.
        """
        loaded = with_options(checked_source(settings), {} if store is None else {"store": store})
        return cls(None, None, clock, loaded, observers)

    @property
    def local_decisions(self) -> int:
        """The number of decisions that were made without the store, because it was unreachable."""
        return self._remote.fallback.local_decisions if self._remote else 0

    async def _close(self, call: Call) -> None:
        """Write the counts, return unused leases, and close the store. A second call changes nothing."""
        steps = [self.observers.write_counts]  # an exporter may wait for its server
        if self.traffic_log is not None:
            steps.append(self.traffic_log.close_or_log)
        if self._override_reader is not None:
            steps.append(self._override_reader.close)
        for step in steps:
            step() if call is blocking_call else await asyncio.to_thread(step)
        if call is async_call:
            loop = asyncio.get_running_loop()
            if tasks := [task for task in self._tasks if task.get_loop() is loop]:  # that send corrections
                await asyncio.wait(tasks)
        self._slots.close()
        await call(self._counts, "close")

    close, aclose = twins(_close)

    def _policies(self) -> list[str]:
        return [rule.source.on_store_error or self.settings.on_store_error for rule in self.rules.rules]

    def _note_opened(self) -> None:
        if self.traffic_log is not None:
            check_eviction(self.traffic_log, self.store)

    def _check(self, rules: RuleSet) -> None:
        """Raise ``ConfigError`` for a limit that fits no request, or the store. Prepare the store for leases."""
        for rule in rules.rules:
            rule.check = self.store.check
            with error_of(f'rule "{rule.name}"'), error_path("cost"):
                rule.check_cost()
            for limit in rule.all_limits():
                with error_of(f"rule {limit.rule!r}"):
                    rule.check(limit)
        if self._remote is not None:
            self._remote.uses_leases |= any(rule.may_decide_here for rule in rules.rules)

    def match(self, features: Features) -> Plan:
        """Return the plan of a request: the rules that apply to it.

        Args:
            features: The features of the request. Those named ``method``, ``path`` and ``host`` choose the rules.
        """
        if self.watch is not None and monotonic() >= self.watch.due_at:
            self.watch.look()
        get = features.get
        return self.rules.plan(get("method") or "", get("path") or "", get("host") or "")

    async def _amatch(self, features: Features) -> Plan:
        """Async form of ``match``. The first requests of a process wait until the store is open."""
        if self.watch is not None and monotonic() >= self.watch.due_at:
            await self.watch.alook()
        elif self._remote is not None and not self._remote.is_open:
            await self.astart()
        get = features.get
        return self.rules.plan(get("method") or "", get("path") or "", get("host") or "")

    def hit(self, features: Features, cost: int | None = None) -> Verdict:
        """Decide a request. When it is allowed, consume its cost on every limit that applies.

        Args:
            features: The features of the request by name, for example ``{"ip": "192.0.2.7", "path": "/login"}``.
            cost: The cost in units of the limits, a whole number from 0 to 10**12. By default each rule's own cost.

        Returns:
            The verdict. It is true when the request is allowed.

        Raises:
            ConfigError: ``cost`` is not a whole number from 0 to 10**12.
        """
        if self.watch is not None and monotonic() >= self.watch.due_at:
            self.watch.look()
        get = features.get
        plan = self.rules.plan(get("method") or "", get("path") or "", get("host") or "")  # ``match`` without its call
        ip = get("ip")
        if ip is not None and (type(ip) is not str or ":" in ip):  # as ``_with_network`` asks, without its call
            features = self._with_network(features)
        verdict = self.decide(plan, features, cost)
        verdict.settler = self
        if self.is_observed:
            self.observers.report_one(verdict)
        return verdict

    async def ahit(self, features: Features, cost: int | None = None) -> Verdict:
        """Async form of ``hit``."""
        plan = await self._amatch(features)
        ip = features.get("ip")
        if ip is not None and (type(ip) is not str or ":" in ip):  # as in ``hit``
            features = self._with_network(features)
        verdict = await self.adecide(plan, features, cost)
        verdict.settler = self
        if self.is_observed:
            self.observers.report_one(verdict)
        return verdict

    def peek(self, features: Features, cost: int | None = None) -> Verdict:
        """Return the verdict that ``hit`` would return. Consume nothing.

        Args:
            features: The features of the request, as for ``hit``.
            cost: The cost in units of the limits, as for ``hit``. A cost of 0 returns the state of each limit.

        Returns:
            The verdict. It has nothing to refund or settle.

        Raises:
            ConfigError: ``cost`` is not a whole number from 0 to 10**12.
        """
        return self.decide(self.match(features), self._with_network(features), cost, consume=False)

    async def apeek(self, features: Features, cost: int | None = None) -> Verdict:
        """Async form of ``peek``."""
        plan = await self._amatch(features)
        return await self.adecide(plan, self._with_network(features), cost, consume=False)

    def decide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        """Decide a request whose plan is known; adapters use it.

        Args:
            plan: The plan of the request, from ``match``.
            features: The features of the request, as for ``hit``.
            cost: The cost in units of the limits, as for ``hit``.
            consume: False for a peek, which consumes nothing.
            request: The request to pass to cost functions. Default: the features.

        Returns:
            The verdict. It is true when the request is allowed.

        Raises:
            ConfigError: ``cost``, or the cost that a function returns, is not a whole number from 0 to 10**12.
        """
        if consume and self._memory is not None and not testmode.active:
            # The fast path: one limit in memory. No list of hits, and no other limit that must agree.
            if plan.single is not None:
                limit, key_of, own_cost = plan.single
                used = own_cost if cost is None else checked_cost(cost)
                if (key := key_of(features)) is not None:
                    decision = self._memory._apply_one(limit, key, used, None if self._clock is None else self._clock())
                    return Verdict((decision,), decision.allowed)
            if plan.choose is not None and (chosen := plan.choose(features, self._time)) is not None:
                limit, key, own_cost = chosen
                used = own_cost if cost is None else checked_cost(cost)
                decision = self._memory._apply_one(limit, key, used, None if self._clock is None else self._clock())
                return Verdict((decision,), decision.allowed)
        if plan.looks_up:
            hits = run(partial(self._prepare, plan, features, cost, consume, request), self._time)
        else:
            hits = self._prepare(plan, features, cost, consume, request)
        if not isinstance(hits, list):
            return cast(Verdict, hits)
        return self._decide_in_turn(plan, hits) if plan.waits and consume else self._apply(plan, hits, consume)

    async def adecide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        """Async form of ``decide``."""
        if plan.looks_up:
            hits = await arun(partial(self._prepare, plan, features, cost, consume, request), self._time)
        elif self.waits or plan.waits:
            hits = self._prepare(plan, features, cost, consume, request)
        else:
            return self.decide(plan, features, cost, consume, request)
        if not isinstance(hits, list):
            return cast(Verdict, hits)
        if plan.waits and consume:
            return await self._adecide_in_turn(plan, hits)
        if not self.waits:
            return self._apply(plan, hits, consume)
        deciding = self._counts.aapply(hits, self._now(), consume)
        decisions = await (self._keep_slots(deciding) if consume and plan.has_slots else deciding)
        return build_verdict(decisions, consume, plan.adds_hits)

    def _apply(self, plan: Plan, hits: list[Hit], consume: bool) -> Verdict:
        if len(hits) == 1 and consume and self._memory is not None and not (plan.adds_hits or hits[0].limit.shadow):
            decision = self._memory._apply_one(*hits[0], self._now())  # as on the fast path
            return Verdict((decision,), decision.allowed)
        decisions = self._counts.apply(hits, self._now(), consume)
        return build_verdict(decisions, consume, plan.adds_hits)

    def _prepare(
        self,
        plan: Plan,
        features: Features,
        cost: int | None,
        consume: bool,
        request: Any,
        found: Found | None = None,
    ) -> list[Hit] | Verdict | LimitsCall:
        """Return the hits for the store to decide, or the verdict of a request that needs no store.

        A plan that ``looks_up`` may need a call first. It needs what is ``found``.
        """
        if cost is not None:
            checked_cost(cost)
        if plan.single is not None and not testmode.active and (key := plan.single[1](features)) is not None:
            limit, _, own_cost = plan.single
            hits = [make_hit((limit, key, own_cost if cost is None else cost))]
            if consume and limit.lease and self._remote and (leased := self._remote.leases.serve(*hits[0])):
                return Verdict((leased,), leased.allowed)
        elif testmode.off:
            return Verdict()
        else:
            try:
                built = plan.hits(features, cost, request, found)
            except EarlyVerdict as early:
                return early.verdict(self._time())
            if isinstance(built, LimitsCall):
                return built
            hits = built
            if testmode.key_suffix and self._clock is None:  # a test has put this limiter on its clock
                hits = [hit._replace(key=hit.key + testmode.key_suffix) for hit in hits]
        hits = name_slots(hits) if consume and plan.has_slots and self.waits else hits
        return (with_added_hits(hits, consume) if plan.adds_hits else hits) or Verdict()

    def _now(self) -> int | None:
        return clock() if (clock := self._clock or testmode.clock) else None
