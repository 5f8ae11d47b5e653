"""``Limiter``: rules and a store behind one call. It knows nothing of HTTP.

Each method that may wait for the store has an async twin, whose name starts with ``a``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from ..clock import Clock, monotonic
from ..decision import Hit, Verdict, build_verdict, make_hit, name_slots, with_added_hits
from ..errors import ConfigError, error_path
from ..keys.features import Features
from ..quota import checked_cost
from ..rules.lookup import find_limits
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, async_call, blocking_call, run_beside, run_blocking, twins
from ..settings import Settings, SettingsSource, with_options
from ..settings.options import checked_observers
from ..stores import MemoryStore, Store, open_store
from ..testmode import testmode
from ..traffic import TrafficLog
from .adaptive_limits import AdaptiveLimits
from .clients import Clients
from .clocks import Clocks
from .followers.files import FileFollower
from .followers.follower import Follower, Watch
from .followers.record import RecordFollower
from .observers.observers import Observer, Observers
from .overrides import Overrides, keeps_records
from .programs import Programs
from .reloads import Reloads
from .remote.store import RemoteStore, RequestStore
from .settlement import Settlement
from .slots import Slots
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
        self.reloads = reloads = Reloads(rules, settings)
        self.clocks = clocks = Clocks(clock)
        arguments = [name for name, value in (("store", store), ("observers", observers)) if value is not None]
        with reloads.located(*arguments), error_path("store"):
            self.store = open_store(self.settings.store if store is None else store, self.settings.store_timeout)
        self.waits = not isinstance(self.store, MemoryStore)
        self._tasks = Tasks(self.waits)
        self.remote = RemoteStore(self.store, self.settings, clocks, self._tasks) if self.waits else None
        self._request_store: RequestStore = self.remote or cast(MemoryStore, self.store)
        self.slots = Slots(self._request_store, clocks, self._tasks)
        self.adaptive = AdaptiveLimits(clocks.own, lambda: reloads.rules.by_name)
        self._programs = Programs(self._request_store, self.adaptive, clocks)
        self.settlement = Settlement(self._request_store, clocks, self._tasks, self.slots, reloads)
        with reloads.located(*arguments):
            self.observers = self._build_observers(observers)
            self.check_limit = self.store.check
            reloads.preparations.append(self._prepare)
            reloads.prepare(self.rules)
        overrides = Overrides(self.store, clocks, reloads)
        self.clients = Clients(self.store, self._request_store, clocks, reloads, overrides, self.adaptive)
        self._files = FileFollower(reloads)
        self._record_follower = self._follow(overrides)
        followed: list[Follower] = [self._record_follower] if self._record_follower else []
        if self.settings.origin and self.settings.origin.files:
            followed.append(self._files)
        reloads.watch = Watch(followed) if followed else None

    def __repr__(self) -> str:
        return f"<Limiter {self.store!r}: {', '.join(self.rules.by_name) or 'no rules'}>"

    def _build_observers(self, given: Sequence[Observer | str] | None) -> Observers:
        """Build the observers, and the traffic log that counts beside them."""
        with error_path("observers"):
            functions = self.settings.observers if given is None else checked_observers(given)
        url, kind = self.settings.traffic_log, type(self.store).__name__.removesuffix("Store").lower()
        with error_path("traffic_log"):
            self.traffic_log = None if url is None else TrafficLog(url, clock=self.clocks.time)
        self.is_observed = bool(functions or self.traffic_log)
        return Observers(functions, self.traffic_log, self.settings, kind, self.adaptive)

    def _follow(self, overrides: Overrides) -> RecordFollower | None:
        """Connect the parts in front of a store that processes share. Return what follows the overrides there."""
        remote = self.remote
        if remote is None:
            run_blocking(overrides.follow(blocking_call))  # those in the memory of this process
            return None
        remote.on_lost = self.slots.return_lost
        self.observers.breaker = remote.breaker
        if self.observers.readers:
            remote.on_call = self.observers.measure_store
        if not keeps_records(self.store):
            return None
        remote.follower = follower = RecordFollower(overrides, remote, self.reloads, self._tasks)
        return follower

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
        loaded = with_options(settings, {} if store is None else {"store": store})
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
    def local_decisions(self) -> int:
        """The number of decisions that were made without the store, because it was unreachable."""
        return self.remote.fallback.local_decisions if self.remote else 0

    async def _close(self, call: Call) -> None:
        """Write the counts, return unused leases, and close the store. A second call changes nothing."""
        steps = [self.observers.write]  # an exporter may wait for its server
        if self.traffic_log is not None:
            steps.append(self.traffic_log.close_or_log)
        if self._record_follower is not None:
            steps.append(self._record_follower.close)
        for step in steps:
            await run_beside(call, step)
        if call is async_call:
            await self._tasks.join()
        await run_beside(call, self.slots.close)
        await call(self._request_store, "close")

    close, aclose = twins(_close)

    def _prepare(self, rules: RuleSet) -> None:
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
            default = self.settings.on_store_error
            self.remote.breaker.actions = Counter(rule.source.on_store_error or default for rule in rules.rules)

    async def _match(self, call: Call, features: Features) -> Plan:
        """Return the plan of a request: the rules that apply to it.

        Args:
            features: The features of the request. Those named ``method``, ``path`` and ``host`` choose the rules.
        """
        reloads = self.reloads
        if reloads.watch is not None and monotonic() >= reloads.watch.due_at:
            await call(reloads.watch, "look")
        return reloads.rules.plan_for_features(features)

    match, amatch = twins(_match)

    def hit(self, features: Features, cost: int | None = None) -> Verdict:
        """Decide a request. When it is allowed, consume its cost on every limit that applies.

        Args:
            features: The features of the request by name, for example ``{"ip": "192.0.2.7", "path": "/login"}``.
            cost: The cost in units of the limits, a whole number from 0 to 10**12. By default each rule's own cost.

        Returns:
            The verdict. It is true when the request is allowed.

        Raises:
            ConfigError: ``cost`` is not a whole number from 0 to 10**12.
            FeatureTypeError: A feature of a key is of a type without a stable text.
        """
        reloads = self.reloads
        if reloads.watch is not None and monotonic() >= reloads.watch.due_at:
            reloads.watch.look()
        plan = reloads.rules.plan_for_features(features)  # as ``match``, without its coroutine
        ip = features.get("ip")
        if ip is not None and (type(ip) is not str or ":" in ip):  # as ``_with_network`` asks, without its call
            features = self._with_network(features)
        verdict = self.decide(plan, features, cost)
        verdict.settlement = self.settlement
        if self.is_observed:
            self.observers.report((verdict,))
        return verdict

    async def ahit(self, features: Features, cost: int | None = None) -> Verdict:
        """Async form of ``hit``."""
        plan = await self._match(async_call, features)
        ip = features.get("ip")
        if ip is not None and (type(ip) is not str or ":" in ip):  # as in ``hit``
            features = self._with_network(features)
        verdict = await self.adecide(plan, features, cost)
        verdict.settlement = self.settlement
        if self.is_observed:
            self.observers.report((verdict,))
        return verdict

    async def _peek(self, call: Call, features: Features, cost: int | None = None) -> Verdict:
        """Return the verdict that ``hit`` would return. Consume nothing.

        Args:
            features: The features of the request, as for ``hit``.
            cost: The cost in units of the limits, as for ``hit``. A cost of 0 returns the state of each limit.

        Returns:
            The verdict. It has nothing to refund or settle.

        Raises:
            ConfigError: ``cost`` is not a whole number from 0 to 10**12.
        """
        plan = await self._match(call, features)
        verdict: Verdict = await call(self, "decide", plan, self._with_network(features), cost, False)
        return verdict

    peek, apeek = twins(_peek)

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
        if cost is not None:
            checked_cost(cost)
        if consume and not testmode.active:
            program = plan.program or self._programs.bind(plan)
            if (verdict := program(features, cost, request)) is not None:
                return verdict
        return run_blocking(self._decide(blocking_call, plan, features, cost, consume, request))

    async def adecide(
        self, plan: Plan, features: Features, cost: int | None = None, consume: bool = True, request: Any = None
    ) -> Verdict:
        """Async form of ``decide``."""
        if cost is not None:
            checked_cost(cost)
        if consume and not (plan.looks_up or testmode.active):
            program = plan.program or self._programs.bind(plan)
            if (verdict := program(features, cost, request)) is not None:
                return verdict
        return await self._decide(async_call, plan, features, cost, consume, request)

    async def _decide(
        self, call: Call, plan: Plan, features: Features, cost: int | None, consume: bool, request: Any
    ) -> Verdict:
        """Decide a request that may have to wait, for the limits of a client, a slot or the store."""
        if testmode.off:
            return Verdict()
        clock = self.clocks.time
        hits: Any
        if plan.looks_up:
            hits = await find_limits(call, lambda lookups: plan.hits(features, cost, request, lookups, clock), clock)
        else:
            hits = plan.hits(features, cost, request, None, clock)
        if isinstance(hits, Verdict):
            return hits
        if testmode.active and (suffix := self.clocks.key_suffix()):
            hits = [(limit, key + suffix, used) for limit, key, used in hits]
        if (
            self.remote is not None
            and consume
            and not plan.adds_hits
            and plan.decides_at_once
            and (known := self.remote.recall(hits))
        ):
            return build_verdict(known)
        hits = list(map(make_hit, hits))
        here = None
        if plan.adapts:
            here, hits = self.adaptive.enter(hits, features) if consume else self.adaptive.look(hits, is_here=True)
            if not here.allowed:
                return here
        if plan.waits and consume:
            verdict = await self.slots.queues.decide(call, plan, hits, partial(self._ask, call, plan))
        else:
            verdict = await self._ask(call, plan, hits, consume)
        return verdict if here is None else self.adaptive.join(plan, here, verdict)

    async def _ask(self, call: Call, plan: Plan, hits: Sequence[Hit], consume: bool) -> Verdict:
        """Ask the store about hits, and about those that it decides before them."""
        if consume and plan.has_slots and self.waits:
            hits = name_slots(hits)
        if plan.adds_hits:
            hits = with_added_hits(hits, consume)
        if not hits:
            return Verdict()
        now = self.clocks.now() if self.clocks.own or testmode.active else None  # most leave the time to the store
        if self.remote is None:
            decisions = self.store.apply(hits, now, consume)
        else:
            decisions = await self.remote.decide(call, hits, now, consume)
        return build_verdict(decisions, consume, plan.adds_hits)

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

    refund, arefund = twins(Settlement.refund, "settlement")
    settle, asettle = twins(Settlement.settle, "settlement")
    conclude, aconclude = twins(Settlement.conclude, "settlement")
    reset, areset = twins(Settlement.reset, "settlement")

    async def _reload(self, call: Call) -> None:
        """Read the settings again, and use them from the next request on. Requests that have begun keep theirs.

        The rules of decorators stay, and the ``overrides`` of the settings are applied to them anew. A change that
        needs a restart, such as that of the store or of the secret, is logged. All other changes take effect.

        Raises:
            ConfigError: The settings have a mistake, or the limiter has no settings. The earlier ones stay in effect.
        """
        await run_beside(call, self._files.reload)

    reload, areload = twins(_reload)

    async def _start(self, call: Call) -> None:
        """Connect to the store now, and not at the first decision. An unreachable store raises no error.

        The ASGI middleware calls it when the application starts. It takes one second at most, and the time budget does
        not apply.
        """
        if self.rules.enabled:
            await call(self._request_store, "start")

    start, astart = twins(_start)


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
        self._limiter.slots.hold(verdict, self._limiter.rules)
        self._held.append(verdict)
        return verdict

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._limiter.conclude(self._end(kind), None)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._limiter.aconclude(self._end(kind), None)

    def _end(self, kind: type[BaseException] | None) -> Verdict:
        """Return the verdict that is held. A block that timed out was dropped by the service."""
        verdict = self._held.pop()
        if kind is None or issubclass(kind, Exception):
            verdict.note_response(504 if kind and issubclass(kind, TimeoutError) else 200)
        return verdict
