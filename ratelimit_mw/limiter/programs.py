"""``Programs``: the decisions of a plan that wait for nothing, bound at its first request into few calls.

They are those of a memory store, of a lease, and of one adaptive limit: this process decides all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..decision import Limit, Verdict, build_verdict, make_hit, with_added_hits
from ..keys.features import Features
from ..rules.lookup import Found, LimitsCall
from ..rules.plan import Plan, Program, Step
from ..stores import MemoryStore
from .clocks import Clocks
from .gates import Gates
from .remote.leases import Leases


class Programs:
    """Binds the plans of a limiter. One limit needs no list of hits.

    Args:
        store: The memory store; None for a store that makes calls.
        leases: The leases of that store; None for the memory store.
        gates: The adaptive limits.
        clocks: The times of the limiter.
    """

    def __init__(self, store: MemoryStore | None, leases: Leases | None, gates: Gates, clocks: Clocks) -> None:
        self._memory, self._leases, self._gates = store, leases, gates
        self._own_clock, self._clock = clocks.own, clocks.time

    def bind(self, plan: Plan) -> Program:
        """Give a plan its program, and return it."""
        step = plan.alone
        if step is not None and (limit := step.shed) is not None:
            plan.program = self._of_gate(step, limit)
        elif self._leases is not None and step is not None and (limit := step.leased) is not None:
            plan.program = self._of_lease(self._leases, step, limit)
        elif self._memory is None or not plan.decides_at_once:
            plan.program = _wait
        elif step is None or (step.limits is not None and len(step.limits) != 1):
            plan.program = self._of_hits(plan)
        elif step.limits is None:
            plan.program = self._of_client(plan, step)
        else:
            plan.program = self._of_limit(step, *step.limits)
        return plan.program

    @property
    def _store(self) -> MemoryStore:
        return cast(MemoryStore, self._memory)

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

    def _of_lease(self, leases: Leases, step: Step, limit: Limit) -> Program:
        """For one limit with leases. The store is asked where none serves the request."""
        serve, own_cost = leases.serve, step.cost or 0
        key_of = step.rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict | None:
            if (key := key_of(features)) is None:
                return Verdict()
            decision = serve(limit, key, own_cost if cost is None else cost)
            return None if decision is None else Verdict((decision,), decision.allowed)

        return decide

    def _of_limit(self, step: Step, limit: Limit) -> Program:
        apply_one, own_clock, own_cost = self._store._apply_one, self._own_clock, step.cost or 0
        key_of = step.rule.key.with_prefix(limit.prefix)

        def decide(features: Features, cost: int | None, _: Any) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            used = own_cost if cost is None else cost
            decision = apply_one(limit, key, used, None if own_clock is None else own_clock())
            return Verdict((decision,), decision.allowed)

        return decide

    def _of_client(self, plan: Plan, step: Step) -> Program:
        """For limits that differ between clients or times."""
        apply_one, own_clock, clock, looks_up = self._store._apply_one, self._own_clock, self._clock, plan.looks_up
        key_of, choose, choosers, own_cost = step.key_of, step.choose, step.choosers, step.cost or 0
        decide_hits = self._of_hits(plan)

        def decide(features: Features, cost: int | None, request: Any, found: Found | None = None) -> Verdict:
            if (key := key_of(features)) is None:
                return Verdict()
            if looks_up and found is None:
                found = Found(clock)
            limits = choose(features, key, found, choosers)
            if type(limits) is tuple and len(limits) == 1:
                limit, used = limits[0], own_cost if cost is None else cost
                decision = apply_one(limit, limit.prefix + key, used, None if own_clock is None else own_clock())
                return Verdict((decision,), decision.allowed)
            if isinstance(limits, LimitsCall) and found is not None:
                found.known[limits.lookup] = limits.result()
                return decide(features, cost, request, found)
            return decide_hits(features, cost, request, found)

        return decide

    def _of_hits(self, plan: Plan) -> Callable[..., Verdict]:
        apply, own_clock, clock = self._store.apply, self._own_clock, self._clock
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
