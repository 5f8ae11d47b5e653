"""``Programs``: the decisions of a plan that wait for nothing, bound at its first request into few calls.

They are those of a memory store, of a lease, and of one adaptive limit: this process decides all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from ..decision import Decision, Limit, Verdict, build_verdict, with_added_hits
from ..keys.features import Features
from ..rules.compiled import CompiledRule
from ..rules.lookup import LimitsCall, Lookups
from ..rules.plan import Plan, Program
from ..stores import MemoryStore
from .adaptive_limits import AdaptiveLimits
from .clocks import Clocks
from .remote.store import RequestStore


class Programs:
    """Binds the plans of a limiter. The program of one limit builds no list of hits."""

    def __init__(self, store: RequestStore, adaptive: AdaptiveLimits, clocks: Clocks) -> None:
        self._adaptive, self._own_clock, self._clock = adaptive, clocks.own, clocks.time
        self._memory = store if isinstance(store, MemoryStore) else None
        self._decide_one: Callable[[Limit, str, int], Decision | None]
        """Decides a limit that is alone; None where another store has to."""
        if not isinstance(store, MemoryStore):
            self._decide_one = store.leases.serve
        elif (own_clock := clocks.own) is None:
            self._decide_one = store._apply_one
        else:
            self._decide_one = lambda limit, key, cost: store._apply_one(limit, key, cost, own_clock())

    def bind(self, plan: Plan) -> Program:
        """Give a plan its program, and return it."""
        plan.program = self._program_of(plan, plan.plain[0] if len(plan.plain) == 1 else None)
        return plan.program

    def _program_of(self, plan: Plan, rule: CompiledRule | None) -> Program:
        if rule is not None and (limit := rule.only_limit) is not None:
            if limit.sheds:
                return self._adaptive_program(rule, limit)
            if plan.decides_at_once and (self._memory is not None or limit.lease):
                return self._one_limit_program(rule, limit)
        if self._memory is None or not plan.decides_at_once:
            return lambda *_: None  # its requests may have to wait
        if rule is not None and rule.limits_of_all is None:
            return self._client_limits_program(plan, rule, self._memory)
        if plan.plain and all(each.limits_of_all is not None for each in plan.plain):
            return self._shared_limits_program(plan.plain, self._memory)
        return self._hits_program(plan, self._memory)

    def _adaptive_program(self, rule: CompiledRule, limit: Limit) -> Program:
        """Build a program for one adaptive limit."""
        enter, own_cost = self._adaptive.enter, rule.fixed_cost or 0
        by_class, class_of = limit.by_class, rule.priorities.class_of
        key_of = rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            used = own_cost if cost is None else cost
            return enter([(by_class[class_of(features)], key, used)], features)[0]

        return decide

    def _one_limit_program(self, rule: CompiledRule, limit: Limit) -> Program:
        """Build a program for one limit of all clients, in memory or with leases."""
        decide_one, own_cost = self._decide_one, rule.fixed_cost or 0
        key_of = rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict | None:
            if (key := key_of(features)) is None:
                return Verdict()
            decision = decide_one(limit, key, own_cost if cost is None else cost)
            return None if decision is None else Verdict((decision,), decision.allowed)

        return decide

    def _shared_limits_program(self, rules: Iterable[CompiledRule], store: MemoryStore) -> Program:
        """Build a program for several limits of all clients."""
        apply, own_clock = store.apply, self._own_clock
        limits_of = [(rule, [(limit, limit.prefix) for limit in rule.limits_of_all or ()]) for rule in rules]
        parts = [(rule.build_key, rule.fixed_cost, limits) for rule, limits in limits_of]

        def decide(features: Features, cost: int | None, _: Any) -> Verdict:
            hits: list[Any] = []
            for key_of, own_cost, limits in parts:
                if (key := key_of(features)) is not None:
                    used = own_cost if cost is None else cost
                    for limit, prefix in limits:
                        hits.append((limit, prefix + key, used))
            decisions = apply(hits, None if own_clock is None else own_clock())
            for decision in decisions:
                if not decision.allowed:
                    return Verdict(decisions, False)
            return Verdict(decisions)

        return decide

    def _client_limits_program(self, plan: Plan, rule: CompiledRule, store: MemoryStore) -> Program:
        """Build a program for limits that differ between clients or times."""
        decide_one, clock, looks_up = self._decide_one, self._clock, plan.looks_up
        key_of, choose, own_cost = rule.build_key, rule.choose, rule.fixed_cost or 0
        decide_hits = self._hits_program(plan, store)

        def decide(features: Features, cost: int | None, request: Any) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            lookups = Lookups(clock) if looks_up else None
            limits = choose(features, key, lookups)
            if lookups is not None and isinstance(limits, LimitsCall):
                lookups.known[limits.lookup] = limits.result()
            if type(limits) is tuple and len(limits) == 1:
                limit = limits[0]
                decision: Any = decide_one(limit, limit.prefix + key, own_cost if cost is None else cost)
                return Verdict((decision,), decision.allowed)
            return decide_hits(features, cost, request, lookups)

        return decide

    def _hits_program(self, plan: Plan, store: MemoryStore) -> Callable[..., Verdict]:
        apply, own_clock, clock = store.apply, self._own_clock, self._clock
        hits_of, looks_up, adds_hits = plan.hits, plan.looks_up, plan.adds_hits

        def decide(features: Features, cost: int | None, request: Any, lookups: Lookups | None = None) -> Verdict:
            if looks_up and lookups is None:
                lookups = Lookups(clock)
            hits = hits_of(features, cost, request, lookups, clock)
            while lookups is not None and isinstance(hits, LimitsCall):
                lookups.known[hits.lookup] = hits.result()
                hits = hits_of(features, cost, request, lookups, clock)
            if not isinstance(hits, list):
                return cast(Verdict, hits)
            if not hits:
                return Verdict()
            asked = with_added_hits(hits, consume=True) if adds_hits else hits
            return build_verdict(apply(asked, None if own_clock is None else own_clock()), has_added=adds_hits)

        return decide
