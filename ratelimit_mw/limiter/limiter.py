"""``Limiter``: rules and a store behind one call. It knows nothing of HTTP.

Each method that may wait for the store has an async twin, whose name starts with ``a``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast
from weakref import finalize, ref

from ..clock import Clock, checked_clock, monotonic
from ..decision import Hit, Verdict, build_verdict, make_hit, name_slots, with_added_hits
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..quota import checked_cost
from ..rules.lookup import Found, LimitsCall, arun, run
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..settings import Settings, SettingsSource, checked_source, with_options
from ..settings.values import checked_observers
from ..stores import MemoryStore, Store, open_store
from ..stores.blocking import Call, async_call, blocking_call, run_blocking, twins
from ..testmode import process_clock, testmode
from .clients import Clients
from .clocks import Clocks
from .gates import Gates, leave, postpone, respond
from .observers.observers import Observer, Observers
from .observers.traffic import check_eviction, feed_of
from .overrides import Overrides, RecordFollower, keeps_records
from .reloads import Reloads
from .remote.breaker import Breaker
from .remote.store import RemoteStore
from .settlement import Settlement
from .slots import Counts, Slots
from .tasks import Tasks


class Limiter:
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
        store: The store.
        clients: The ``Clients``: its methods show, reset and ban single clients, and override their limits.
        reloads: The rules and the settings, and what reads them again.
        slots: The slots of the requests that run in this process.
        gates: The adaptive limits of this process.
        settlement: What settles verdicts.
        clocks: The times of the limiter.
        observers: The observers.
        is_observed: Whether the limiter has observers.
        traffic_log: The traffic log that counts the outcomes, None without the setting.
        remote: The parts of this process in front of the store, None for the memory store.
        check_limit: Raises ``ConfigError`` for a limit that is known later than its rule, and cannot be decided here.
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
        self.reloads = reloads = Reloads(rules, settings)
        self.clocks = clocks = _clocks_of(clock)
        self._clock, self._time, self._now = clocks.own, clocks.time, clocks.now
        given = {"store": store, "observers": observers}
        arguments = [name for name, value in given.items() if value is not None]
        with reloads.located(*arguments), error_path("store"):
            self.store = open_store(self.settings.store if store is None else store, self.settings.store_timeout)
        self._memory = self.store if isinstance(self.store, MemoryStore) else None
        self.waits = self._memory is None
        # With your own clock, the decisions of all stores are equal to the microsecond. Cached decisions are not.
        options = (self.settings, clocks.time, clocks.now, self._policies, clock is None)
        self.remote = None if self._memory is not None else RemoteStore(self.store, *options)
        self._counts: Counts = self.remote or cast(MemoryStore, self._memory)
        self._tasks = Tasks(self.waits)
        self.slots = Slots(self._counts, clocks, self._tasks)
        self.gates = Gates(clocks.own)
        self.settlement = Settlement(self._counts, clocks, self._tasks, self.slots, reloads)
        with reloads.located(*arguments):
            with error_path("observers"):
                functions = self.settings.observers if observers is None else checked_observers(observers)
            with error_path("traffic_log"):
                feed = feed_of(self, self.settings, clocks.time)
            self.traffic_log = None if feed is None else feed.log
            functions = (*functions, *filter(None, [feed]))
            kind = type(self.store).__name__.removesuffix("Store").lower()
            self.observers = Observers(functions, self.settings.event_features, kind)
            self.observers.gates = ref(self.gates)
            finalize(self, self.observers.abandon).atexit = False
            self.is_observed = bool(functions)
            self.check_limit = self.store.check
            reloads.checks.append(self._check)
            reloads.check(self.rules)
        overrides = Overrides(self.store, clocks, reloads)
        self.clients = Clients(self.store, self._counts, clocks, reloads, overrides, self.gates)
        self._follower: RecordFollower | None = None
        if self.remote is not None:
            self.remote.lose, self.remote.opened = self.slots.lose, self._note_opened
            self.observers.breaker = ref(self.remote.breaker)
            if self.observers.readers:
                self.remote.timed = self.observers.measure_store
            if keeps_records(self.store):
                self._follower = RecordFollower(overrides, self.remote, reloads, self._tasks)
                self.remote.follower = self._follower
        else:
            run_blocking(overrides.follow(blocking_call))  # those in the memory of this process
        reloads.follow(self._follower)

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
    def rules(self) -> RuleSet:
        """The rules, compiled."""
        return self.reloads.rules

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.reloads.settings

    @property
    def breaker(self) -> Breaker | None:
        """The circuit breaker of the store, None for the memory store."""
        return self.remote.breaker if self.remote else None

    @property
    def local_decisions(self) -> int:
        """The number of decisions that were made without the store, because it was unreachable."""
        return self.remote.fallback.local_decisions if self.remote else 0

    async def _close(self, call: Call) -> None:
        """Write the counts, return unused leases, and close the store. A second call changes nothing."""
        steps = [self.observers.write]  # an exporter may wait for its server
        if self.traffic_log is not None:
            steps.append(self.traffic_log.close_or_log)
        if self._follower is not None:
            steps.append(self._follower.close)
        for step in steps:
            step() if call is blocking_call else await asyncio.to_thread(step)
        if call is async_call:
            await self._tasks.join()
        self.slots.close()
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
            rule.check = self.check_limit
            with rule.located("cost"):
                rule.check_cost()
            with rule.located():
                for limit in rule.all_limits():
                    self.store.check(limit)
        if self.remote is not None:
            self.remote.uses_leases |= any(rule.may_decide_here for rule in rules.rules)

    def match(self, features: Features) -> Plan:
        """Return the plan of a request: the rules that apply to it.

        Args:
            features: The features of the request. Those named ``method``, ``path`` and ``host`` choose the rules.
        """
        reloads = self.reloads
        if reloads.watch is not None and monotonic() >= reloads.watch.due_at:
            reloads.watch.look()
        get = features.get
        return reloads.rules.plan(get("method") or "", get("path") or "", get("host") or "")

    async def _amatch(self, features: Features) -> Plan:
        """Async form of ``match``. The first requests of a process wait until the store is open."""
        reloads, remote = self.reloads, self.remote
        if reloads.watch is not None and monotonic() >= reloads.watch.due_at:
            await reloads.watch.alook()
        elif remote is not None and not remote.is_open:
            await self.astart()
        get = features.get
        return reloads.rules.plan(get("method") or "", get("path") or "", get("host") or "")

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
        reloads = self.reloads
        if reloads.watch is not None and monotonic() >= reloads.watch.due_at:
            reloads.watch.look()
        get = features.get
        plan = reloads.rules.plan(get("method") or "", get("path") or "", get("host") or "")  # as ``match``
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
        if plan.adapts and consume and (held := self._pass_gate(plan, features)) is not None:
            return held
        if plan.looks_up:
            hits = run(partial(self._prepare, plan, features, cost, consume, request), self._time)
        else:
            hits = self._prepare(plan, features, cost, consume, request)
        if not isinstance(hits, list):
            return cast(Verdict, hits)
        if plan.adapts:
            return run_blocking(self._pass_gates(blocking_call, plan, hits, features, consume))
        if plan.waits and consume:
            return run_blocking(self.slots.decide_in_turn(blocking_call, plan, hits))
        return self._apply(plan, hits, consume)

    async def adecide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        """Async form of ``decide``."""
        if plan.adapts and consume and (held := self._pass_gate(plan, features)) is not None:
            return held
        if plan.looks_up:
            hits = await arun(partial(self._prepare, plan, features, cost, consume, request), self._time)
        elif self.waits or plan.waits:
            hits = self._prepare(plan, features, cost, consume, request)
        else:
            return self.decide(plan, features, cost, consume, request)
        if not isinstance(hits, list):
            return cast(Verdict, hits)
        if plan.adapts:
            return await self._pass_gates(async_call, plan, hits, features, consume)
        return await self._adecide_hits(plan, hits, consume)

    async def _adecide_hits(self, plan: Plan, hits: list[Hit], consume: bool) -> Verdict:
        if plan.waits and consume:
            return await self.slots.decide_in_turn(async_call, plan, hits)
        if not self.waits:
            return self._apply(plan, hits, consume)
        deciding = self._counts.aapply(hits, self._now(), consume)
        decisions = await (self.slots.keep(deciding) if consume and plan.has_slots else deciding)
        return build_verdict(decisions, consume, plan.adds_hits)

    def _pass_gate(self, plan: Plan, features: Features) -> Verdict | None:
        """Decide a request by one limit that follows the load: the fast path. None where it does not apply."""
        hit = None if plan.gate is None or testmode.active else plan.gate(features)
        return None if hit is None else self.gates.enter([hit], features)

    async def _pass_gates(self, call: Call, plan: Plan, hits: list[Hit], features: Features, consume: bool) -> Verdict:
        """Decide the limits that follow the load of this process, and then ask the store about the others."""
        others = [hit for hit in hits if not hit.limit.sheds]
        held = self.gates.enter([hit for hit in hits if hit.limit.sheds], features) if consume else Verdict()
        if not (held.allowed and others):
            return held
        began = self.gates.begin(features)
        try:
            if call is async_call:
                verdict = await self._adecide_hits(plan, others, consume)
            elif plan.waits and consume:
                verdict = await self.slots.decide_in_turn(call, plan, others)
            else:
                verdict = self._apply(plan, others, consume)
        except BaseException:
            leave(held)
            raise
        if consume:
            self.gates.note(verdict, began)
        if not verdict.allowed:
            leave(held)
        elif plan.may_delay:
            postpone(held, verdict.delay)
        order = {hit.limit.rule: number for number, hit in enumerate(hits)}  # the decisions of a rule follow each other
        every = [*held.decisions, *verdict.decisions]
        verdict.decisions = sorted(every, key=lambda decision: order[decision.hit[0].rule])
        return verdict

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
        single = None if testmode.active else plan.single
        if single and (key := single[1](features)) is not None:
            limit, _, own_cost = single
            hits = [make_hit((limit, key, own_cost if cost is None else cost))]
            if consume and limit.lease and self.remote and (leased := self.remote.leases.serve(*hits[0])):
                return Verdict((leased,), leased.allowed)
        elif testmode.off:
            return Verdict()
        else:
            built = plan.hits(features, cost, request, found, self._time)
            if not isinstance(built, list):
                return built
            hits = built
            if suffix := self.clocks.key_suffix():
                hits = [hit._replace(key=hit.key + suffix) for hit in hits]
            hits = self.gates.tuned(hits) if plan.adapts else hits
        hits = name_slots(hits) if consume and plan.has_slots and self.waits else hits
        return (with_added_hits(hits, consume) if plan.adds_hits else hits) or Verdict()

    def _with_network(self, features: Features) -> Features:
        """Return the features of a request with ``ip`` in the form that ``ban`` has. Other text stays as it is."""
        ip = features.get("ip")
        if ip is None or (type(ip) is str and ":" not in ip):
            return features
        try:
            return {**features, **self.reloads.as_counted({"ip": ip})}
        except ConfigError:
            return features

    def slot(self, features: Features, cost: int | None = None) -> Slot:
        """Hold a slot of each matching concurrency rule while a block runs. Other matching rules count the request.

        Args:
            features: The features of the request, as for ``hit``.
            cost: How many slots to hold, by default each rule's own cost.

        Returns:
            A context manager for ``with`` and ``async with``. It enters as the verdict.

        Raises:
            RateLimitExceeded: A rule rejects. Raised when the block is entered.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="reports", limits="2 concurrent")])
            >>> with limiter.slot({"ip": "192.0.2.7"}) as verdict:
            ...     verdict.decisions[0].remaining
            1
        """
        return Slot(self, features, cost)

    def hold(self, verdict: Verdict, rules: RuleSet | None = None) -> None:
        """Renew the slots of a verdict until ``conclude``; adapters use it.

        Args:
            verdict: The verdict of an allowed request.
            rules: The rules of the request. Default: the current rules.
        """
        self.slots.hold(verdict, rules or self.rules)

    async def _refund(self, call: Call, verdict: Verdict) -> None:
        """Refund all of the cost that a verdict consumed. A second call changes nothing.

        Args:
            verdict: A verdict of ``hit``.
        """
        await self.settlement.refund(call, verdict)

    refund, arefund = twins(_refund)

    async def _settle(self, call: Call, verdict: Verdict, cost: int, rule: str | None = None) -> None:
        """Replace the cost that a verdict consumed with the true cost.

        A lower cost refunds the difference. A higher cost consumes the difference, even beyond the limit. Slots of
        concurrency rules are not changed.

        Args:
            verdict: A verdict of ``hit``.
            cost: The true cost in units of the limits, a whole number from 0 to 10**12.
            rule: The name of the rule to settle. You may leave it out when only one rule applied. A rule that did not
                apply to the request is not changed.

        Raises:
            ConfigError: ``cost`` is out of range, there is no such rule, or several rules applied.
        """
        await self.settlement.settle(call, verdict, cost, rule)

    settle, asettle = twins(_settle)

    def settle_stated(self, verdict: Verdict) -> None:
        """Apply the costs that ``verdict[rule].settle`` stated. On an event loop, a task applies them.

        Args:
            verdict: A verdict of this limiter.
        """
        self.settlement.settle_stated(verdict)

    async def _conclude(self, call: Call, verdict: Verdict, status: int | None) -> None:
        """Return slots, apply the stated cost and undo costs that do not count; adapters call it after the response.

        Args:
            verdict: The verdict of the request.
            status: The HTTP status of the response. None means that the outcome is unknown: the cost stays consumed.
        """
        await self.settlement.conclude(call, verdict, status)

    conclude, aconclude = twins(_conclude)

    def forget(self, verdict: Verdict, rule: str) -> None:
        """Set the counts under the key of one rule of a verdict to zero, those of the verdict included.

        A key with an invalid feature stays: many clients share it, so one of them could reset the counts of the others.

        Args:
            verdict: A verdict of this limiter.
            rule: The name of the rule.
        """
        self.settlement.forget(verdict, rule)

    async def _forget_key(
        self, call: Call, verdict: Verdict, rule: str, features: Features, rules: RuleSet | None = None
    ) -> None:
        """Forget all that is counted under a key; adapters call it. An unreachable store is logged.

        As with ``forget``, a key with an invalid feature stays.

        Args:
            verdict: The verdict of the current request, which may have consumed under the same key.
            rule: The name of the rule.
            features: The features of the key.
            rules: The rules of the request. Default: the current rules.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        await self.settlement.forget_key(call, verdict, rule, features, rules)

    forget_key, aforget_key = twins(_forget_key)

    async def _reset(self, call: Call, rule: str, features: Features) -> None:
        """Reset the counts of one client under a rule, and lift its ban.

        Args:
            rule: The name of the rule.
            features: The features of its key, for example ``{"ip": "192.0.2.7"}``.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        await self.settlement.reset(call, rule, features)

    reset, areset = twins(_reset)

    async def _reload(self, call: Call) -> None:
        """Read the settings again, and use them from the next request on. Requests that have begun keep theirs.

        The rules of decorators stay, and the ``overrides`` of the settings are applied to them anew. All limiters of
        this process with the same settings file are reloaded. A change of the store, of ``on_store_error`` or of the
        secret needs a restart. Such a change is logged, and all other changes take effect.

        Raises:
            ConfigError: The settings have a mistake, or the limiter has no settings. The earlier ones stay in effect.
        """
        await call(self.reloads, "reload")

    reload, areload = twins(_reload)

    async def _start(self, call: Call) -> None:
        """Connect to the store now, and not at the first decision. An unreachable store raises no error.

        The ASGI middleware calls it when the application starts. It takes one second at most, and the time budget does
        not apply.
        """
        if self.rules.enabled:
            await call(self._counts, "start")

    start, astart = twins(_start)


def _clocks_of(own: Clock | None) -> Clocks:
    """Return the times of a limiter that was given a clock, or none. A test may put it on its own."""
    own = None if own is None else checked_clock(own)

    def now() -> int | None:
        return clock() if (clock := own or testmode.clock) else None

    return Clocks(own, own or process_clock, now, lambda: testmode.key_suffix if own is None else "")


class Slot:
    """Holds the slots of a request while the block runs. It may be entered again, even while it is held."""

    def __init__(self, limiter: Limiter, features: Features, cost: int | None) -> None:
        self._limiter = limiter
        self._request = features, cost
        self._held: list[Verdict] = []

    def __enter__(self) -> Verdict:
        return self._enter(self._limiter.hit(*self._request))

    async def __aenter__(self) -> Verdict:
        return self._enter(await self._limiter.ahit(*self._request))

    def _enter(self, verdict: Verdict) -> Verdict:
        verdict.raise_for_limit()
        self._limiter.hold(verdict)
        self._held.append(verdict)
        return verdict

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._limiter.conclude(self._end(kind), None)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._limiter.aconclude(self._end(kind), None)

    def _end(self, kind: type[BaseException] | None) -> Verdict:
        """Return the verdict that is held. A block that was cancelled, or timed out, was dropped by the service."""
        verdict = self._held.pop()
        if kind is None or (issubclass(kind, Exception) and not issubclass(kind, TimeoutError)):
            respond(verdict, 200)
        return verdict
