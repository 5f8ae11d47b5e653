"""A middleware around another one with other rules: the view settles the rules of both."""

from __future__ import annotations

from shared_store import SharedStore
from sites import NOW, Build, Call
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.testing import ManualClock


def limiter_of(name: str) -> Limiter:
    return Limiter([Rule(name=name, limits="99/minute", cost=10)], SharedStore(), ManualClock(NOW))


def left(limiter: Limiter) -> int:
    return limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining


def test_a_view_settles_the_rules_of_both(site: Build) -> None:
    """Each middleware applies the cost of its own rule at the end."""

    async def settle(call: Call) -> int:
        call.verdict["outer"].settle(3)
        call.verdict["inner"].settle(4)
        return 200

    outer, inner = limiter_of("outer"), limiter_of("inner")
    assert site(inner, settle, outer=outer).statuses(1) == [200]
    assert (left(outer), left(inner)) == (96, 95)


@each("is_ended", [False, True])
def test_a_limiter_leaves_the_rules_of_another_to_it(site: Build, is_ended: bool) -> None:
    """``settle`` and ``refund`` of one limiter reach both stores, during the request and after its end."""
    seen: list[Verdict] = []

    def change(verdict: Verdict) -> None:
        outer.settle(verdict, 3, rule="inner")
        inner.settle(verdict, 4, rule="outer")

    async def view(call: Call) -> int:
        seen.append(call.verdict) if is_ended else change(call.verdict)
        return 200

    outer, inner = limiter_of("outer"), limiter_of("inner")
    assert site(inner, view, outer=outer).statuses(1) == [200]
    for verdict in seen:
        change(verdict)
    assert (left(outer), left(inner)) == (95, 96)
    for verdict in seen:
        outer.refund(verdict)
        assert (left(outer), left(inner)) == (99, 99)
