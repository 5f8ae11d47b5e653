"""Requests per minute and tokens per minute together: each rule is settled by its name, even for cancelled callers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis_handles import PATIENT, address
from servers import Server
from shared_store import SharedStore

from ratelimit_mw import INVALID, ConfigError, Limiter, Rule, Verdict
from ratelimit_mw.decision import combine_verdicts
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.testing import ManualClock

WHO = {"user": "ann"}
_numbers = itertools.count()


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["memory", "shared", "redis"])
def limiter(request: pytest.FixtureRequest, redis_server: Server, loop: asyncio.Runner) -> Iterator[Limiter]:
    WHO["user"] = f"settle-{next(_numbers)}"
    stores = {"memory": MemoryStore, "shared": SharedStore, "redis": lambda: open_store(address(redis_server), PATIENT)}
    limiter = built(stores[request.param]())
    yield limiter
    loop.run(limiter.aclose())


@pytest.fixture(params=["blocking", "awaited"])
def way(request: pytest.FixtureRequest, loop: asyncio.Runner) -> Any:
    """A limiter's methods, blocking or awaited on one event loop."""

    def awaited(limiter: Limiter) -> Any:
        def call(name: str) -> Any:
            return lambda *args, **named: loop.run(getattr(limiter, f"a{name}")(*args, **named))

        return SimpleNamespace(**{name: call(name) for name in ("hit", "settle", "refund", "conclude")})

    return awaited if request.param == "awaited" else lambda limiter: limiter


def built(store: Any) -> Limiter:
    rules = [
        Rule(name="requests", key=["user"], limits="20/minute; 8 concurrent"),
        Rule(name="tokens", key=["user"], limits="1000/minute; 5000/hour", cost=100),
    ]
    return Limiter(rules, store, ManualClock(1_000_000.0))


def left(limiter: Limiter) -> list[int]:
    return [decision.remaining for decision in limiter.peek(WHO, cost=0).decisions]


def test_settle_changes_the_rule_that_is_named(limiter: Limiter, way: Any) -> None:
    """The other rule keeps its cost, and slots are not changed."""
    verdict = way(limiter).hit(WHO)
    assert left(limiter) == [19, 7, 900, 4900]
    way(limiter).settle(verdict, 150, rule="tokens")
    assert left(limiter) == [19, 7, 850, 4850]
    way(limiter).settle(verdict, 3, "requests")
    assert left(limiter) == [17, 7, 850, 4850]
    way(limiter).refund(verdict)
    assert left(limiter) == [20, 8, 1000, 5000]


def test_the_part_of_a_verdict_takes_effect_at_once(limiter: Limiter) -> None:
    """``settle`` replaces the cost, ``refund`` returns slots too, ``reset`` forgets other requests of the key."""
    other, verdict = limiter.hit(WHO), limiter.hit(WHO)
    verdict["tokens"].settle(300)
    assert left(limiter) == [18, 6, 600, 4600]
    verdict["requests"].refund()
    assert left(limiter) == [19, 7, 600, 4600]
    verdict["tokens"].reset()
    assert left(limiter) == [19, 7, 1000, 5000]
    limiter.refund(verdict)
    assert left(limiter) == [19, 7, 1000, 5000]
    limiter.refund(other)
    assert left(limiter) == [20, 8, 1000, 5000]


def test_a_reset_keeps_the_counts_of_an_invalid_feature(limiter: Limiter, way: Any) -> None:
    """All clients with an invalid user share them, so one client would reset the guesses of another."""
    try:
        for consumed in (100, 200):
            verdict = way(limiter).hit({"user": INVALID})
            verdict["tokens"].reset()
            assert limiter.peek({"user": INVALID}, cost=0).decisions[2].remaining == 1000 - consumed
    finally:
        limiter.reset("tokens", {"user": INVALID})
    assert limiter.peek({"user": INVALID}, cost=0).decisions[2].remaining == 1000


@pytest.mark.parametrize("cost", [0, 7])
def test_settle_without_a_name_is_an_error_where_several_rules_apply(limiter: Limiter, way: Any, cost: int) -> None:
    """A cost of one rule would otherwise refund the other: requests would not be limited."""
    for _ in range(3):
        verdict = way(limiter).hit(WHO)
        for settle in (lambda v: way(limiter).settle(v, cost), lambda v: v.settle(cost)):
            with pytest.raises(ConfigError, match=r"2 rules apply: 'requests', 'tokens'\. Name one: .*\"tokens\""):
                settle(verdict)
        limiter.settle(verdict, 0, rule="tokens")
    assert left(limiter) == [17, 5, 1000, 5000]


def test_an_unknown_rule_is_an_error(limiter: Limiter, way: Any) -> None:
    """The message has the nearest name."""
    verdict = way(limiter).hit(WHO)
    for settle in (lambda: way(limiter).settle(verdict, 1, "token"), lambda: verdict["token"].settle(1)):
        with pytest.raises(ConfigError, match=r"unknown rule 'token'\. Did you mean 'tokens'\?"):
            settle()
    with pytest.raises(TypeError, match="not iterable"):
        list(verdict)  # type: ignore[call-overload]


def test_a_rule_that_did_not_apply_is_not_settled(limiter: Limiter, way: Any) -> None:
    """A view settles tokens even for a client that has no limit on them."""
    verdict = way(limiter).hit({})
    assert "tokens" not in verdict
    way(limiter).settle(verdict, 5, rule="tokens")
    way(limiter).settle(verdict, 5)
    verdict.settle(5)
    for change in (lambda part: part.settle(5), lambda part: part.refund(), lambda part: part.reset()):
        change(verdict["tokens"])
    Verdict()["anything"].settle(5)
    assert left(limiter) == [20, 8, 1000, 5000]


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 10**12 + 1])
def test_an_invalid_cost_is_an_error(limiter: Limiter, cost: Any) -> None:
    """Nothing is settled."""
    verdict = limiter.hit(WHO)
    for settle in (lambda: verdict["tokens"].settle(cost), lambda: limiter.settle(verdict, cost, "tokens")):
        with pytest.raises(ConfigError, match="expected a cost as a whole number"):
            settle()
    assert left(limiter)[2:] == [900, 4900]


def test_settlements_in_any_order_leave_the_last_cost(limiter: Limiter, way: Any) -> None:
    """Random settlements and refunds of both rules, by the limiter and by the verdict."""
    chance = random.Random(12)
    consumed = {"requests": 0, "tokens": 0}
    for _ in range(8):
        verdict = way(limiter).hit(WHO)
        last = {"requests": 1, "tokens": 100}
        for _ in range(6):
            rule, cost = chance.choice(["requests", "tokens"]), chance.randint(0, 4)
            if chance.random() < 0.5:
                way(limiter).settle(verdict, cost, rule)
            else:
                verdict[rule].settle(cost)
            last[rule] = cost
        way(limiter).conclude(verdict, None)
        consumed = {rule: consumed[rule] + last[rule] for rule in consumed}
    requests, tokens = consumed.values()
    assert left(limiter) == [max(0, 20 - requests), 8, 1000 - tokens, 5000 - tokens]


@pytest.mark.parametrize("form", ["asettle", "arefund", "aconclude", "part"])
def test_a_cancelled_caller_still_settles(limiter: Limiter, loop: asyncio.Runner, form: str) -> None:
    """Clients disconnect at any moment. The consumed cost is still settled."""

    async def work(begun: asyncio.Event) -> None:
        verdict = await limiter.ahit(WHO)
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            if form == "part":
                verdict["requests"].refund()
                verdict["tokens"].settle(7)
            elif form == "arefund":
                await limiter.arefund(verdict)
            elif form == "asettle":
                try:
                    await limiter.asettle(verdict, 7, "tokens")
                finally:
                    await limiter.asettle(verdict, 0, "requests")
            else:
                verdict["tokens"].settle(7)
                await limiter.aconclude(verdict, None)

    async def scenario() -> None:
        for steps in range(6):
            begun = asyncio.Event()
            task = asyncio.create_task(work(begun))
            await begun.wait()
            task.cancel()
            for _ in range(steps):  # it is cancelled again while it settles
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
        await asyncio.gather(*limiter._tasks.running)

    loop.run(scenario())
    requests = 6 if form == "aconclude" else 0
    slots = 6 if form == "asettle" else 0
    tokens = 0 if form == "arefund" else 6 * 7
    assert left(limiter) == [20 - requests, 8 - slots, 1000 - tokens, 5000 - tokens]


@pytest.mark.parametrize("change", ["settle", "refund", "reset"])
def test_an_event_loop_does_not_wait_for_the_store(change: str) -> None:
    """On an event loop, a task changes the part of a verdict, and ``aclose`` awaits the task."""
    store = SharedStore()
    limiter = built(store)

    async def scenario() -> Verdict:
        verdict = await limiter.ahit(WHO)
        before = store.calls
        method = getattr(verdict["tokens"], change)
        method(7) if change == "settle" else method()
        assert store.calls == before
        await limiter.aclose()
        assert store.calls == before + 2, "the second one ends the announcement of this process"
        return verdict

    asyncio.run(scenario())
    assert left(limiter)[2:] == ([993, 4993] if change == "settle" else [1000, 5000])


def test_a_reset_outlives_its_event_loop() -> None:
    """An async view of Flask has a loop of its own, which ends with the view and cancels the task of the reset."""
    limiter = built(SharedStore())

    async def view() -> None:
        (await limiter.ahit(WHO))["tokens"].reset()

    asyncio.run(view())
    assert left(limiter)[2:] == [1000, 5000]


def test_an_outage_does_not_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """An unreachable store cannot settle or reset. The limiter logs this, and views continue."""
    store = SharedStore()
    limiter = built(store)

    async def scenario() -> None:
        verdict = await limiter.ahit(WHO)
        store.down = True
        verdict["tokens"].settle(7)
        verdict["tokens"].reset()
        verdict["requests"].refund()
        await limiter.aclose()

    asyncio.run(scenario())
    store.down = False
    verdict = limiter.hit(WHO)
    store.down = True
    verdict["tokens"].reset()
    message = "rule tokens: the store could not reset a key (it does not answer)"
    assert caplog.messages.count(message) == 2


def test_a_late_cost_keeps_the_outcome() -> None:
    """A cost that is stated after the end does not charge a request whose outcome does not count."""
    rule = Rule(name="failures", key=[], limits="10/minute", count_when={"status": 401})
    for status, remaining in ((200, 10), (401, 6), (None, 6)):
        limiter = Limiter([rule], clock=ManualClock(1_000_000.0))
        verdict = limiter.hit({})
        limiter.conclude(verdict, status)
        verdict["failures"].settle(4)
        assert limiter.peek({}, cost=0).decisions[0].remaining == remaining


def test_one_rule_needs_no_name(way: Any) -> None:
    """Slots have no cost, so a rule with slots does not make the rule with rates ambiguous."""
    slots, rate = Rule(name="slots", key=[], limits="9 concurrent"), Rule(name="rate", key=[], limits="10/minute")
    limiter = Limiter([slots, rate], clock=ManualClock(1_000_000.0))
    verdict = way(limiter).hit({})
    verdict.settle(4)
    assert [decision.remaining for decision in limiter.peek({}, cost=0).decisions] == [8, 6]
    way(limiter).settle(verdict, 7)
    assert [decision.remaining for decision in limiter.peek({}, cost=0).decisions] == [8, 3]


def test_a_peek_cannot_be_settled_or_reset(limiter: Limiter) -> None:
    """It has consumed nothing, and changes nothing."""
    assert limiter.hit(WHO)
    peek = limiter.peek(WHO)
    peek["tokens"].settle(5)
    peek["tokens"].refund()
    peek["tokens"].reset()
    limiter.conclude(peek, 200)
    assert left(limiter) == [19, 7, 900, 4900]


@pytest.mark.parametrize("rule", ["inner", "outer"])
def test_a_request_of_two_limiters_is_settled_by_both(way: Any, rule: str) -> None:
    """Each limiter changes what it counted, whichever of them settles."""
    clock = ManualClock(1_000_000.0)
    outer, inner = (Limiter([Rule(name=name, key=[], limits="10/minute")], clock=clock) for name in ("outer", "inner"))
    both = combine_verdicts([way(outer).hit({}), way(inner).hit({})])
    both[rule].settle(5)
    way(outer).conclude(both, 200)
    left_of = {
        limiter.rules.rules[0].name: limiter.peek({}, cost=0).decisions[0].remaining for limiter in (outer, inner)
    }
    assert left_of == {"outer": 9, "inner": 9, rule: 5}
