"""The keys of a limiter in the server: they expire, hold whole numbers, and rejected requests leave none."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
import redis
from redis_handles import ALGORITHMS, PATIENT, address, calls, hit, limit_of
from servers import Server

from ratelimit_mw import Limiter, Quota, Rule
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Hit
from ratelimit_mw.receipt import Charge, Correction
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store

NUMBERS = re.compile(rb"=?-?\d+(:-?\d+)*")
WHO = {"ip": "192.0.2.7", "user": "ann", "endpoint": "/login"}


def contents(server: redis.Redis) -> dict[bytes, Any]:
    """Every key with its value, without that of a ping, which expires at once."""
    found: dict[bytes, Any] = {}
    for key in set(server.scan_iter()) - {b"rl:ping"}:
        is_text = server.type(key) == b"string"
        found[key] = server.get(key) if is_text else server.zrange(key, 0, -1, withscores=True)
    return found


@pytest.mark.usefixtures("no_reads")
@pytest.mark.parametrize("way", ["blocking", "on a loop"])
def test_three_keys_of_one_request_are_one_command(own_server: Server, server: redis.Redis, way: str) -> None:
    """By address, by user and by endpoint: one EVALSHA; after a rejection by the last all three are as they were."""
    rules = [
        Rule(name="address", limits="100/hour", key=["ip"]),
        Rule(name="user", limits="50/hour", key=["user"], algorithm="gcra"),
        Rule(name="endpoint", limits="2/hour", key=["endpoint"], algorithm="sliding-window-counter"),
    ]
    limiter = Limiter(
        rules, open_store(address(own_server), PATIENT), settings=Settings(rejection_cache=0, fleet_size=1)
    )
    with asyncio.Runner() as runner:

        def ask() -> bool:
            return bool(limiter.hit(WHO) if way == "blocking" else runner.run(limiter.ahit(WHO)))

        assert ask()
        server.config_resetstat()
        assert ask()
        assert calls(server) == {"evalsha": 1, "time": 1, "get": 3, "set": 3}
        before = contents(server)
        assert sorted(key.split(b"|")[1:2] for key in before) == [[b"address"], [b"endpoint"], [b"user"]], before
        server.config_resetstat()
        assert not ask()
        assert calls(server) == {"evalsha": 1, "time": 1, "get": 3}
        assert contents(server) == before
        runner.run(limiter.aclose())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_every_key_expires_and_holds_whole_numbers(
    own_server: Server, server: redis.Redis, seed: int
) -> None:
    """Hits, rejections, charges, refunds, renewals and pings at random, of every algorithm, with the server's time."""
    chance, store = random.Random(seed), open_store(address(own_server), PATIENT)
    slots = Limit(limit_of("1/minute").rule, 0, Quota.parse("5 concurrent"), "fixed-window")
    limits = [slots, *(limit_of(f"{chance.randint(1, 30)}/{chance.choice(['minute', 'day'])}", a) for a in ALGORITHMS)]
    consumed: list[tuple[Hit, Charge]] = []
    for _ in range(400):
        hits = [hit(each, chance.choice("abc"), chance.choice((0, 1, 2, 9))) for each in chance.sample(limits, 3)]
        for one, decision in zip(hits, store.apply(hits), strict=True):
            if decision.allowed and one.cost:
                consumed.append((one, Charge(decision.at_us, one.cost, decision.delay_us)))
        if consumed and chance.random() < 0.5:
            one, what = consumed.pop(chance.randrange(len(consumed)))
            back = 0 if one.limit is slots and chance.random() < 0.3 else chance.randint(1, one.cost)
            charged = hit(chance.choice(limits), chance.choice("abc"))
            store.correct([Correction(one.limit, one.key, back, what), Correction(charged.limit, charged.key, 1, None)])
        if chance.random() < 0.05:
            store.ping()
            assert all(server.pttl(key) != -1 for key in server.scan_iter())
    found = contents(server)
    assert len(found) > len(limits)
    for key, content in found.items():
        assert server.pttl(key) != -1, key
        members = [content] if isinstance(content, bytes) else [member for member, _ in content]
        assert all(NUMBERS.fullmatch(member) for member in members if member), content
        assert isinstance(content, bytes) or all(score == int(score) for _, score in content)
    store.close()
