"""Requests per minute and tokens per minute together: each rule is settled by its name, even for cancelled callers."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis_handles import PATIENT, address
from servers import Server
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import INVALID, Limiter, Rule, Verdict
from ratelimit_mw.decision import combine_verdicts
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import ManualClock

WHO = {"user": "ann"}


@pytest.fixture
def limiter(store: Store) -> Iterator[Limiter]:
    limiter = built(store)
    yield limiter
    limiter.close()


def built(store: Any) -> Limiter:
    rules = [
        Rule(name="requests", key=["user"], limits="20/minute; 8 concurrent"),
        Rule(name="tokens", key=["user"], limits="1000/minute; 5000/hour", cost=100),
    ]
    return Limiter(rules, store, ManualClock(1_000_000.0))


def left(limiter: Limiter, features: Any = WHO) -> list[int]:
    return [decision.remaining for decision in limiter.peek(features, cost=0).decisions]


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
    verdict["tokens"].reset()
    assert [each.remaining for each in verdict.decisions] == [18, 6, 1000, 5000]
    verdict["requests"].refund()
    assert left(limiter) == [19, 7, 1000, 5000]
    limiter.conclude(verdict, 200)
    assert left(limiter) == [19, 7, 1000, 5000]
    limiter.refund(verdict)
    assert left(limiter) == [19, 7, 1000, 5000]
    limiter.refund(other)
    assert left(limiter) == [20, 8, 1000, 5000]


def test_a_reset_keeps_the_counts_of_an_invalid_feature(limiter: Limiter, way: Any) -> None:
    """All clients with an invalid user share them, so one client would reset the guesses of another."""
    invalid = {"user": INVALID}
    for consumed in (100, 200):
        way(limiter).hit(invalid)["tokens"].reset()
        assert left(limiter, invalid)[2] == 1000 - consumed
    limiter.reset("tokens", invalid)
    assert left(limiter, invalid)[2] == 1000


def test_a_settlement_that_names_no_rule_of_several_is_an_error(limiter: Limiter, way: Any) -> None:
    """A cost of one rule would otherwise refund the other: requests would not be limited."""
    verdict = way(limiter).hit(WHO)
    several = r"2 rules apply: 'requests', 'tokens'\. Name one: .*\"tokens\""
    for cost in (0, 7):
        expect_error(several, way(limiter).settle, verdict, cost)
    unknown = r"unknown rule 'token'\. Did you mean 'tokens'\?"
    expect_error(unknown, way(limiter).settle, verdict, 1, "token")
    expect_error(unknown, lambda: verdict["token"].settle(1))
    expect_error(r"unknown rule 'x'\. Expected one of requests, tokens", lambda: verdict["x"])
    for cost in (-1, 1.5, True, "1", 10**12 + 1):
        expect_error("expected a cost as a whole number", verdict["tokens"].settle, cost)
        expect_error("expected a cost as a whole number", limiter.settle, verdict, cost, "tokens")
    with pytest.raises(TypeError, match="not iterable"):
        list(verdict)
    assert left(limiter) == [19, 7, 900, 4900]


def test_a_rule_that_did_not_apply_is_not_settled(limiter: Limiter, way: Any) -> None:
    """A view settles tokens even for a client that has no limit on them."""
    verdict = way(limiter).hit({})
    assert "tokens" not in verdict
    way(limiter).settle(verdict, 5, rule="tokens")
    way(limiter).settle(verdict, 5)
    expect_error("expected a cost as a whole number", way(limiter).settle, verdict, -1)
    for change in (lambda part: part.settle(5), lambda part: part.refund(), lambda part: part.reset()):
        change(verdict["tokens"])
    Verdict()["anything"].settle(5)
    assert left(limiter) == [20, 8, 1000, 5000]


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


async def settle_both(limiter: Limiter, verdict: Verdict) -> None:
    try:
        await limiter.asettle(verdict, 7, "tokens")
    finally:
        await limiter.asettle(verdict, 0, "requests")


async def settle_parts(_: Limiter, verdict: Verdict) -> None:
    verdict["requests"].refund()
    verdict["tokens"].settle(7)


async def refund(limiter: Limiter, verdict: Verdict) -> None:
    await limiter.arefund(verdict)


async def reset(limiter: Limiter, verdict: Verdict) -> None:
    await limiter.areset("tokens", {"user": verdict.decisions[0].client.removeprefix("user=")})


async def conclude(limiter: Limiter, verdict: Verdict) -> None:
    verdict["tokens"].settle(7)
    await limiter.aconclude(verdict, None)


@pytest.mark.parametrize("kind", ["shared", "redis"])
@pytest.mark.parametrize(
    ("change", "rest"),
    [
        (settle_both, [20, 8 - 6, 1000 - 6 * 7, 5000 - 6 * 7]),
        (settle_parts, [20, 8, 1000 - 6 * 7, 5000 - 6 * 7]),
        (refund, [20, 8, 1000, 5000]),
        (reset, [20 - 6, 8 - 6, 1000, 5000]),
        (conclude, [20 - 6, 8, 1000 - 6 * 7, 5000 - 6 * 7]),
    ],
)
def test_a_cancelled_caller_still_settles(
    request: pytest.FixtureRequest, kind: str, change: Any, rest: list[int]
) -> None:
    """Clients disconnect at any moment. The consumed cost of six is still settled or reset."""
    who = {"user": uuid4().hex}

    async def work(limiter: Limiter, begun: asyncio.Event) -> None:
        verdict = await limiter.ahit(who)
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await change(limiter, verdict)

    async def scenario(limiter: Limiter) -> list[int]:
        for steps in range(6):
            begun = asyncio.Event()
            task = asyncio.create_task(work(limiter, begun))
            await begun.wait()
            task.cancel()
            for _ in range(steps):  # it is cancelled again while it settles
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
        await limiter.aclose()  # waits for all that is still to be settled
        verdict = await limiter.apeek(who, cost=0)
        await limiter.aclose()
        return [decision.remaining for decision in verdict.decisions]

    redis: Server | None = request.getfixturevalue("redis_server") if kind == "redis" else None
    limiter = built(open_store(address(redis), PATIENT) if redis else SharedStore())
    assert asyncio.run(scenario(limiter)) == rest


@each("change", ["settle", "refund", "reset"])
def test_an_event_loop_does_not_wait_for_the_store(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an event loop, a task changes the part of a verdict, and ``aclose`` awaits the task. Then it is forgotten."""
    store = SharedStore()
    limiter = built(store)
    monkeypatch.setattr(asyncio, "sleep", partial(asyncio.tasks.sleep, 0.05))  # in each call of the store

    async def scenario() -> None:
        verdict = await limiter.ahit(WHO)
        before = store.calls
        method = getattr(verdict["tokens"], change)
        method(7) if change == "settle" else method()
        assert store.calls == before
        await limiter.aclose()
        assert store.calls == before + 2, "the second one ends the announcement of this process"
        assert not limiter._tasks.running

    asyncio.run(scenario())
    assert left(limiter)[2:] == ([993, 4993] if change == "settle" else [1000, 5000])


def test_a_reset_outlives_its_event_loop() -> None:
    """An async view of Flask has a loop of its own, which ends with the view and cancels the task of the reset."""
    limiter = built(SharedStore())

    async def view() -> None:
        (await limiter.ahit(WHO))["tokens"].reset()

    asyncio.run(view())
    assert left(limiter)[2:] == [1000, 5000]


def test_an_outage_does_not_reach_the_caller(caplog: pytest.LogCaptureFixture, shared: SharedStore) -> None:
    """An unreachable store cannot settle or reset. Views continue, and the log has no line for each of them."""
    limiter = built(shared)
    verdict = limiter.hit(WHO)
    shared.down = True
    verdict["tokens"].reset()

    async def scenario() -> None:
        verdict["tokens"].settle(7)
        verdict["tokens"].reset()
        verdict["requests"].refund()
        await limiter.aclose()

    asyncio.run(scenario())
    for _ in range(9):
        verdict["tokens"].reset()
    message = "rule tokens: the store could not reset a key (it does not answer)"
    assert [each for each in caplog.messages if each.startswith("rule tokens")] == [message] * 2


def test_a_reset_of_another_client_keeps_the_cost_of_a_request(limiter: Limiter) -> None:
    verdict = limiter.hit(WHO)
    limiter.settlement.forget_key(verdict, "tokens", {"user": "bob"}, limiter.rules)
    limiter.settle(verdict, 150, "tokens")
    assert left(limiter)[2:] == [850, 4850]


def test_a_rule_that_a_reload_has_removed_is_reset(tmp_path: Path) -> None:
    """The count is forgotten, should the rule come back."""
    file = tmp_path / "ratelimit.json"
    rules = [{"name": name, "key": [], "limits": "9/minute"} for name in ("old", "new")]
    whole, rest = json.dumps({"rules": rules}), json.dumps({"rules": rules[1:]})
    file.write_text(whole)
    with closing(Limiter.from_settings(file, clock=ManualClock(1_000_000.0))) as limiter:
        verdict = limiter.hit({})
        file.write_text(rest)
        limiter.reload()
        verdict["old"].reset()
        file.write_text(whole)
        limiter.reload()
        assert left(limiter, {}) == [9, 8]


def test_a_late_cost_keeps_the_outcome() -> None:
    """A cost stated after the end charges no request whose outcome does not count. A reset includes its request."""
    rule = Rule(name="failures", key=[], limits="10/minute", count_when={"status": 401})
    for status, remaining in ((200, 10), (401, 6), (None, 6)):
        limiter = Limiter([rule], clock=ManualClock(1_000_000.0))
        verdict = limiter.hit({})
        limiter.conclude(verdict, status)
        verdict["failures"].settle(4)
        assert left(limiter, {}) == [remaining]
        verdict = limiter.hit({})
        verdict["failures"].reset()
        limiter.conclude(verdict, status)
        assert left(limiter, {}) == [10]


@each("options", [{"mode": "shadow"}, {"count_when": {"status": 401}}])
def test_a_rejection_has_nothing_to_refund(options: Any) -> None:
    """Neither a shadow limit that rejects, nor a rejected request that counts by its outcome."""
    rules = [Rule(name="one", key=[], limits="1/minute", **options), Rule(name="all", key=[], limits="9/minute")]
    limiter = Limiter(rules, clock=ManualClock(1_000_000.0))
    limiter.hit({})
    limiter.refund(limiter.hit({}))
    assert left(limiter, {}) == [0, 8]


def test_one_rule_needs_no_name(way: Any) -> None:
    """Slots have no cost, so a rule with slots does not make the rule with rates ambiguous."""
    slots, rate = Rule(name="slots", key=[], limits="9 concurrent"), Rule(name="rate", key=[], limits="10/minute")
    limiter = Limiter([slots, rate], clock=ManualClock(1_000_000.0))
    verdict = way(limiter).hit({})
    way(limiter).settle(verdict, 4)
    assert left(limiter, {}) == [8, 6]
    way(limiter).settle(verdict, 7)
    assert left(limiter, {}) == [8, 3]


def test_a_peek_cannot_be_settled_or_reset(limiter: Limiter) -> None:
    """It has consumed nothing, and changes nothing."""
    assert limiter.hit(WHO)
    peek = limiter.peek(WHO)
    peek["tokens"].settle(5)
    peek["tokens"].refund()
    peek["tokens"].reset()
    limiter.conclude(peek, 200)
    assert left(limiter) == [19, 7, 900, 4900]


@each("is_by_limiter", [False, True])
@each("rule", ["inner", "outer"])
def test_a_request_of_two_limiters_is_settled_by_both(way: Any, rule: str, is_by_limiter: bool) -> None:
    """Each limiter changes what it counted, whichever of them settles."""
    clock = ManualClock(1_000_000.0)
    limiters = {
        name: Limiter([Rule(name=name, key=[], limits="10/minute")], clock=clock) for name in ("outer", "inner")
    }
    both = combine_verdicts([way(each).hit({}) for each in limiters.values()])
    if is_by_limiter:
        way(limiters["outer"]).settle(both, 5, rule)
    else:
        both[rule].settle(5)
    way(limiters["outer"]).conclude(both, 200)
    assert {name: left(each, {}) for name, each in limiters.items()} == {"outer": [9], "inner": [9], rule: [5]}
