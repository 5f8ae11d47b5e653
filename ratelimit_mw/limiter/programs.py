"""``Programs``: the decisions of a plan that wait for nothing, bound at its first request into few calls.

They are those of a memory store, of a lease, and of one adaptive limit: this process decides all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..decision import Decision, Limit, Verdict, build_verdict, make_hit, with_added_hits
from ..keys.features import Features
from ..rules.lookup import Found, LimitsCall
from ..rules.plan import Plan, Program, Step
from ..stores import MemoryStore
from .clocks import Clocks
from .gates import Gates
from .slots import Counts


class Programs:
    """Binds the plans of a limiter. One limit needs no list of hits."""

    def __init__(self, counts: Counts, gates: Gates, clocks: Clocks) -> None:
        self._gates, self._own_clock, self._clock = gates, clocks.own, clocks.time
        self._memory = counts if isinstance(counts, MemoryStore) else None
        self._decide_one: Callable[[Limit, str, int], Decision | None]
        """Decides a limit that is alone; None where another store has to."""
        if not isinstance(counts, MemoryStore):
            self._decide_one = counts.leases.serve
        elif (own_clock := clocks.own) is None:
            self._decide_one = counts._apply_one
        else:
            self._decide_one = lambda limit, key, cost: counts._apply_one(limit, key, cost, own_clock())

    def bind(self, plan: Plan) -> Program:
        """Give a plan its program, and return it."""
        step = plan.alone
        if step is not None and step.shed is not None:
            plan.program = self._of_gate(step, step.shed)
        elif self._memory is None:
            leased = None if step is None else step.leased
            plan.program = _wait if step is None or leased is None else self._of_limit(step, leased)
        elif not plan.decides_at_once:
            plan.program = _wait
        elif step is None or (step.limits is not None and len(step.limits) != 1):
            plan.program = self._of_hits(plan, self._memory)
        elif step.limits is None:
            plan.program = self._of_client(plan, step, self._memory)
        else:
            plan.program = self._of_limit(step, *step.limits)
        return plan.program

    def _of_gate(self, step: Step, limit: Limit) -> Program:
        """For one adaptive limit."""
        enter, own_cost = self._gates.enter, step.cost or 0
        by_class, class_of = limit.by_class, step.rule.priorities.class_of
        key_of = step.rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            used = own_cost if cost is None else cost
            return enter([make_hit((by_class[class_of(features)], key, used))], features)

        return decide

    def _of_limit(self, step: Step, limit: Limit) -> Program:
        """For one limit of all clients, in memory or with leases."""
        decide_one, own_cost = self._decide_one, step.cost or 0
        key_of = step.rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict | None:
            if (key := key_of(features)) is None:
                return Verdict()
            decision = decide_one(limit, key, own_cost if cost is None else cost)
            return None if decision is None else Verdict((decision,), decision.allowed)

        return decide

    def _of_client(self, plan: Plan, step: Step, store: MemoryStore) -> Program:
        """For limits that differ between clients or times."""
        decide_one, clock, looks_up = self._decide_one, self._clock, plan.looks_up
        key_of, choose, choosers, own_cost = step.key_of, step.choose, step.choosers, step.cost or 0
        decide_hits = self._of_hits(plan, store)

        def decide(features: Features, cost: int | None, request: Any, found: Found | None = None) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            if looks_up and found is None:
                found = Found(clock)
            limits = choose(features, key, found, choosers)
            if type(limits) is tuple and len(limits) == 1:
                limit = limits[0]
                decision: Any = decide_one(limit, limit.prefix + key, own_cost if cost is None else cost)
                return Verdict((decision,), decision.allowed)
            if isinstance(limits, LimitsCall) and found is not None:
                found.known[limits.lookup] = limits.result()
                return decide(features, cost, request, found)
            return decide_hits(features, cost, request, found)

        return decide

    def _of_hits(self, plan: Plan, store: MemoryStore) -> Callable[..., Verdict]:
        apply, own_clock, clock = store.apply, self._own_clock, self._clock
        hits_of, looks_up, adds_hits = plan.hits, plan.looks_up, plan.adds_hits

        def decide(features: Features, cost: int | None, request: Any, found: Found | None = None) -> Verdict:
            if looks_up and found is None:
                found = Found(clock)
            hits = hits_of(features, cost, request, found, clock)
            if isinstance(hits, LimitsCall) and found is not None:
                found.known[hits.lookup] = hits.result()
                return decide(features, cost, request, found)
            if not isinstance(hits, list):
                return cast(Verdict, hits)
            if not hits:
                return Verdict()
            asked = with_added_hits(hits, consume=True) if adds_hits else hits
            return build_verdict(apply(asked, None if own_clock is None else own_clock()), has_added=adds_hits)

        return decide


def _wait(_features: Features, _cost: int | None, _request: Any) -> None:
    """The program of a plan whose requests may wait."""
