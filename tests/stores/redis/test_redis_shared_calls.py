"""Requests that share a call to Redis are decided as those that have a call of their own."""

import random
import time
from typing import Any

import pytest
import redis
from own_time import way_of
from redis_handles import ALGORITHMS, NOW, client, limit_of, opened
from servers import Server

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.decision import Charge, Correction, Hit, Limit
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores.redis import call
from ratelimit_mw.stores.redis.call import CORRECT, HIT, PEEK, Operation, frame_of, pack_operations
from ratelimit_mw.testing.reference_store import ReferenceStore, values_of


class Search:
    """A random stream of requests, decided by the model at once and by the server many in one call."""

    def __init__(self, limits: list[Limit], seed: int) -> None:
        self.limits = limits
        self.chance = random.Random(seed)
        self.model = ReferenceStore()
        self.now = NOW
        self.consumed: list[tuple[Hit, Charge]] = []

    def step(self) -> tuple[Operation, Any]:
        """An operation and its expected result."""
        self.now += self.chance.choice((0, 0, 1, 10, 1000, 300_000, 2_000_000, -500_000))
        if self.chance.random() < 0.2:
            changes = self.changes()
            self.model.correct(changes, self.now)
            return Operation(CORRECT, changes, names(changes), 0, self.now), [self.now] * len(changes)
        client = self.chance.choice("abc")
        chosen = self.chance.sample(self.limits, self.chance.randint(1, len(self.limits)))
        hits = [Hit(limit, limit.prefix + client, self.chance.choice((0, 1, 1, 1, 2, 5))) for limit in chosen]
        consume = self.chance.random() < 0.9
        expected = self.model.apply(hits, self.now, consume)
        if consume and all(d.allowed or hit.limit.shadow for hit, d in zip(hits, expected, strict=True)):
            found = zip(hits, expected, strict=True)
            self.consumed += [
                (hit, Charge(d.at_us, hit.cost, d.delay_us)) for hit, d in found if d.allowed and hit.cost
            ]
        return Operation(HIT if consume else PEEK, hits, names(hits), 0, self.now), [*map(values_of, expected)]

    def renewals(self, slots: Limit) -> tuple[Operation, Any]:
        """An operation that renews the last slots, and its expected result."""
        last = [(hit, consumed) for hit, consumed in self.consumed[-3:] if hit.limit is slots]
        found = [Correction(hit.limit, hit.key, 0, consumed) for hit, consumed in last]
        self.model.correct(found, self.now)
        return Operation(CORRECT, found, names(found), 0, self.now), [self.now] * len(found)

    def changes(self) -> list[Correction]:
        limit = self.chance.choice(self.limits)
        found = [Correction(limit, limit.prefix + "a", self.chance.randint(1, 3), None)]
        while self.consumed and len(found) < 3:
            hit, consumed = self.consumed.pop(self.chance.randrange(len(self.consumed)))
            found.append(Correction(hit.limit, hit.key, self.chance.randint(1, consumed.cost), consumed))
        return found


@pytest.mark.parametrize("spec", ALGORITHMS, ids=str)
def test_random_requests_in_shared_calls_are_those_of_the_model(redis_server: Server, spec: Any) -> None:
    """1,200 requests of up to four limits, 200 to a call: each is decided in its turn, alone, exactly."""
    others = ["fixed-window", "sliding-window-log", "gcra"]
    limits = [limit_of("7/3s", spec), *(limit_of("20/10s", other, shadow=other == "gcra") for other in others)]
    check_calls(redis_server, Search(limits, seed=7))


def test_random_concurrent_requests_are_those_of_the_model(redis_server: Server) -> None:
    """1,200 requests that take slots, renew them and return them, beside another limit, 200 to a call."""
    slots = build_limit(limit_of("1/minute").rule, 0, Quota.parse("5 concurrent"), "fixed-window")
    check_calls(redis_server, Search([slots, limit_of("50/10s", "gcra")], seed=11), slots)


def test_requests_of_several_days_share_a_call(redis_server: Server) -> None:
    """Each has the windows of a calendar around its own time. A clock may go back by days."""
    one = Hit(limit := limit_of("1 per calendar day"), f"{limit.prefix}days", 1)
    requests = [Operation(HIT, [one], names([one]), 0, NOW + days * 86_400_000_000) for days in (0, 9, 9, 18, 0)]
    with opened(redis_server) as store:
        assert [each[0].allowed for each in together(store, requests)] == [True, True, False, True, False]


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_in_a_script_of_redis_6_keeps_its_code(redis_server: Server, count: int) -> None:
    """Redis 6.2 puts a place in the script before it. By its code, the next call looks for another server."""
    hits = [Hit(limit_of("9/hour"), key, 1) for key in "ab"[:count]]
    script, (argument,) = pack_operations([Operation(HIT, hits, names(hits), 0, NOW)])
    raises = "function() error('@user_script: 9: -READONLY It is a replica', 0) end"
    redis_6 = f"local redis = {{error_reply = redis.error_reply, call = {raises}}}\n"
    with client(redis_server) as server, pytest.raises(redis.exceptions.ReadOnlyError):
        server.eval(redis_6 + script.text.decode(), count, *names(hits), argument)


def test_what_is_packed_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost may be a number that a client sends."""
    monkeypatch.setattr(call, "_MAX_PACKED", 3)
    for cost in range(10):
        frame_of([Operation(HIT, [Hit(limit_of("9/hour"), "a", cost)], [b"a"], 0)])
    assert len(call._ends) <= 3


def check_calls(server: Server, search: Search, slots: Limit | None = None) -> None:
    with opened(server) as store:
        for _ in range(6):
            steps = [search.step() for _ in range(200)]
            if slots is not None:
                steps.append(search.renewals(slots))
            check(together(store, [request for request, _ in steps]), steps)


def check(found: list[Any], steps: list[tuple[Operation, Any]]) -> None:
    """Compare results with the expected times of corrections, or decisions."""
    for i, (answer, (request, expected)) in enumerate(zip(found, steps, strict=True)):
        said = answer if request.kind == CORRECT else [*map(values_of, answer)]
        assert said == expected, f"request {i} of its call"


def names(items: list[Any]) -> list[bytes]:
    return [b"rl:" + item.key.encode() for item in items]


def together(store: Any, requests: list[Operation]) -> list[Any]:
    """The answers to requests that share one call."""
    run_blocking(way_of(store).connections.ask_each(requests, time.monotonic() + 10))
    return [request.result for request in requests]
