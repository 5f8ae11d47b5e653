"""A custom algorithm has no Lua: this process decides, and writes if the state is unchanged. It is exact too."""

import asyncio
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from own_time import way_of
from redis_handles import NOW, PATIENT, address, calls, client, hit, limit_of, opened, undo
from servers import Server, redis_running, wait_for

from ratelimit_mw.algorithms import Algorithm, register
from ratelimit_mw.decision import Charge, Correction, Decision, Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.quota import Quota
from ratelimit_mw.stores import open_store
from ratelimit_mw.testing.reference_store import ReferenceStore, values_of
from ratelimit_mw.testing.store_suite import WAYS

State = tuple[int, int] | None


@register
class Whole(Algorithm):
    """N, and no more until nothing was consumed for P: each hit restarts the wait. It counts rejections too."""

    name = "whole-pause"

    @property
    def lifetime(self) -> int:
        return self.period

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        at, count = state if state is not None and now - state[0] < self.period else (now, 0)
        ends_in = max(at, now) + self.period - now
        room = max(0, self.amount - count)
        if cost == 0:
            return state, Decision(True, room, 0, at + self.period - now if count else 0, now)
        if cost > room:
            retry = None if cost > self.amount else ends_in
            return (max(at, now), count), Decision(False, room, retry, ends_in, now)
        return (max(at, now), count + cost), Decision(True, room - cost, 0, ends_in, now)

    def charge(self, state: State, now: int, cost: int) -> State:
        at, count = state or (now, 0)
        return max(at, now), count + cost

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or state[1] <= cost:
            return None
        return state[0], state[1] - cost


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_those_of_the_algorithm(own_server: Server, way: str) -> None:
    """Hits, counted rejections, peeks, charges and refunds, beside limits with Lua: all equal the reference store."""
    own, shadow = limit_of("5/10s", "whole-pause"), limit_of("3/7s", "whole-pause", shadow=True)
    twin, chance, model, now = limit_of("9/10s"), random.Random(3), ReferenceStore(), NOW
    consumed: list[Correction] = []
    with closing(WAYS[way](open_store(address(own_server), PATIENT))) as handle:
        for _ in range(400):
            now += chance.choice((0, 1, 1_000_000, 4_000_000, 12_000_000))
            limits = chance.sample((own, twin, shadow), chance.randint(1, 3))
            hits = [hit(limit, chance.choice("ab"), chance.choice((0, 1, 1, 2, 6))) for limit in limits]
            consume = chance.random() < 0.85
            expected = model.apply(hits, now, consume)
            assert [*map(values_of, handle.apply(hits, now, consume))] == [*map(values_of, expected)]
            if consume and all(decision.allowed for decision in expected):
                consumed += [undo(one, d.at_us, d.delay_us) for one, d in zip(hits, expected, strict=True) if one.cost]
            if consumed and chance.random() < 0.3:
                charges = [Correction(limit, limit.prefix + "a", 1, None) for limit in (own, twin)]
                changes = [consumed.pop(), *charges]
                model.correct(changes, now)
                assert handle.correct(changes, now) == [now] * 3


def test_its_state_is_the_text_that_it_dumps_and_expires(own_server: Server, server: redis.Redis) -> None:
    """GET returns the state; a full refund deletes it; a rejection by another limit writes nothing."""
    own, full = limit_of("5/hour", "whole-pause"), limit_of("1/hour")
    with opened(own_server) as store:
        (first,) = store.apply([hit(own)])
        (key,) = server.scan_iter()
        assert server.get(key) == b"%d:1" % first.at_us
        assert 3_590_000 < server.pttl(key) <= 3_600_002
        store.apply([hit(full)])
        kept = server.get(key)
        assert [decision.allowed for decision in store.apply([hit(own), hit(full)])] == [True, False]
        assert server.get(key) == kept
        store.correct([undo(hit(own), first.at_us)])
        assert not server.exists(key)


def test_a_correction_that_no_server_has_made_is_left_once(no_threads: pytest.MonkeyPatch) -> None:
    """Otherwise it would be made twice later."""
    change = Correction(limit_of("5/hour", "whole-pause"), "a", 1, None)
    with closing(open_store("redis://127.0.0.1:1")) as store:
        with pytest.raises(StoreError):
            store.correct([change])
        assert [changes for changes, _, _ in store._unmade._waiting] == [[change]]  # type: ignore[attr-defined]


def test_three_calls_a_request(own_server: Server, server: redis.Redis) -> None:
    """One to read, one to write, whatever the number of limits, and one for those with Lua."""
    limits = [limit_of("5/hour", "whole-pause"), limit_of("6/hour", "whole-pause"), limit_of("7/hour")]
    with opened(own_server) as store:
        store.apply([hit(limit) for limit in limits])
        server.config_resetstat()
        store.apply([hit(limit) for limit in limits])
    assert calls(server)["evalsha"] == 3


def test_races_are_exact(own_server: Server, server: redis.Redis) -> None:
    """Of 200 tries of eight threads and 100 on an event loop exactly 100 pass, and none is an error."""
    own = limit_of("100/hour", "whole-pause")

    async def many() -> int:
        found = await asyncio.gather(*(store.aapply([hit(own)]) for _ in range(100)))
        await store.aclose()
        return sum(answer[0].allowed for answer in found)

    with opened(own_server) as store, ThreadPoolExecutor(9) as pool:
        on_a_loop = pool.submit(asyncio.run, many())
        blocking = sum(decisions[0].allowed for decisions in pool.map(lambda _: store.apply([hit(own)]), range(200)))
        assert blocking + on_a_loop.result() == 100


class Contested(Whole):
    """Another client always writes between the read and the write."""

    name = "contested"

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        self.interfere()
        return super().decide(state, now, cost)

    def charge(self, state: State, now: int, cost: int) -> State:
        self.interfere()
        return super().charge(state, now, cost)

    interfere: Callable[[], Any]


def contested(server: redis.Redis, store: Any) -> Limit:
    """A limit that loses all of its races. After the fifth, the call has no time for another attempt."""
    limit = limit_of("5/hour", "whole-pause")
    algorithm = Contested(Quota.parse("5/hour"))
    numbers = itertools.count(1)

    def interfere() -> None:
        number = next(numbers)
        server.set("rl:" + limit.prefix + "ip=192.0.2.7", f"{NOW - number}:1")
        if number == 5:
            hasten(store)

    algorithm.interfere = interfere
    limit.algorithm, limit.decide = algorithm, algorithm.decide
    return limit


def hasten(store: Any) -> None:
    """Move the clock of a call to where a seventh of its time budget is left."""
    way_of(store).clock.now += 0.85 * PATIENT / 1e6


def test_a_request_that_loses_every_race_is_rejected(own_server: Server, server: redis.Redis) -> None:
    """Tried again within the time budget, then rejected for a moment: no error, and nothing is written."""
    with opened(own_server) as store:
        limit, other = contested(server, store), limit_of("5/hour")
        decisions = store.apply([hit(limit), hit(other)], NOW)
        assert [(d.allowed, d.remaining, d.source) for d in decisions] == [(False, 0, limit), (True, 5, other)]
        assert 0 < (decisions[0].retry_us or 0) <= 500_000
    assert not server.exists("rl:" + other.prefix + "ip=192.0.2.7")


@pytest.mark.parametrize("way", WAYS)
def test_a_correction_that_loses_every_race_is_made_later(own_server: Server, server: redis.Redis, way: str) -> None:
    """The store tries again until no other client is faster. The corrections after it are not lost either."""
    with opened(own_server) as store, closing(WAYS[way](store)) as handle:
        limit, other = contested(server, store), limit_of("5/hour", "whole-pause")
        key = "rl:" + limit.prefix + "ip=192.0.2.7"
        charges = [Correction(each, each.prefix + "ip=192.0.2.7", 3, None) for each in (limit, other)]
        assert handle.correct(charges, NOW) == [NOW, NOW]
        limit.algorithm.interfere = lambda: None  # type: ignore[attr-defined]
        before = int(server.get(key).split(b":")[1])  # type: ignore[union-attr, arg-type]
        wait_for(lambda: server.get("rl:" + other.prefix + "ip=192.0.2.7") == b"%d:3" % NOW, "the corrections")
        assert server.get(key) == b"%d:%d" % (NOW, before + 3)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_correction_without_a_reply_is_not_made_again(tmp_path: Path, way: str) -> None:
    """The server may have made it before it stopped, so it is an error as without a lost race."""
    with redis_running(tmp_path) as silent, client(silent) as server:
        with opened(silent) as store, closing(WAYS[way](store)) as handle:
            limit = contested(server, store)
            key = limit.prefix + "ip=192.0.2.7"
            interfere, steps = limit.algorithm.interfere, iter((True,))  # type: ignore[attr-defined]

            def pause() -> None:
                silent.pause()
                hasten(store)

            limit.algorithm.interfere = lambda: interfere() if next(steps, False) else pause()  # type: ignore[attr-defined]
            with pytest.raises(StoreError):
                handle.correct([Correction(limit, key, 3, None)], NOW)
            silent.resume()
        # The write that the server had before it stopped has lost its race. A store that closes makes what is left.
        assert server.get(f"rl:{key}") == b"%d:1" % (NOW - 1)


def test_a_subclass_of_a_built_in_algorithm_has_no_lua(own_server: Server, server: redis.Redis) -> None:
    """The Lua of an algorithm does not decide for its subclasses."""

    class Generous(type(limit_of("1/hour").algorithm)):  # type: ignore[misc]
        def decide(self, state: Any, now: int, cost: int) -> Any:
            return state, Decision(True, 99, 0, 0, now)

    limit = limit_of("1/hour")
    limit.algorithm = Generous(Quota.parse("1/hour"))
    limit.decide = limit.algorithm.decide
    with opened(own_server) as store:
        assert [store.apply([hit(limit)])[0].remaining for _ in range(3)] == [99, 99, 99]
