"""Leases: fewer calls for a hot key, never more than the limit, and little left unused."""

import asyncio
import random
from bisect import bisect
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.limiter.remote import leases
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO, ANOTHER, THIRD = ({"ip": ip} for ip in ("192.0.2.7", "198.51.100.1", "198.51.100.2"))


def setup(
    limits: Any = "100/minute", lease: str = "50%", processes: int = 1, algorithm: Any = "fixed-window", **rule: Any
) -> tuple[list[Limiter], SharedStore, ManualClock]:
    clock, store = ManualClock(1_000_020.0), SharedStore()
    rules = [Rule(name="api", limits=limits, lease=lease, algorithm=algorithm, **rule)]
    return [Limiter(rules, store, clock, Settings(rejection_cache=0)) for _ in range(processes)], store, clock


def left(limiter: Limiter, features: dict[str, str] = WHO) -> int:
    """What remains in the store."""
    return limiter.peek(features, cost=0).decisions[0].remaining


def test_a_lease_serves_only_its_own_limit() -> None:
    """Limits of several plans may count under one key."""
    (limiter,), _, _ = setup("100/hour", "10%", per={"plan": {"pro": ["100000/hour"]}})
    for count, plan in ((300, "pro"), (300, "free"), (5, "pro")):
        allowed = sum(limiter.hit({**WHO, "plan": plan}).allowed for _ in range(count))
        assert allowed == (0 if plan == "free" else count)
    two = [{"plan": "pro", **WHO}, {"plan": "free", **WHO}]
    assert [asyncio.run(limiter.ahit(features)).allowed for features in two] == [True, False]


@each("limits", ["1000/minute", lambda ip: "1000/minute"])
@each("algorithm", ["fixed-window", "sliding-window-counter", "tiered-window", "gcra"])
def test_one_process_gets_exactly_the_limit_with_few_calls(algorithm: str, limits: Any) -> None:
    """It asks once per share, and a few times more near the end of the limit."""
    (limiter,), store, _ = setup(limits, "2%", algorithm=algorithm)
    allowed = sum(limiter.hit(WHO).allowed for _ in range(1000))
    assert allowed == 1000
    assert store.calls <= 50 + 10
    assert not limiter.hit(WHO)


@each(
    ("limits", "lease", "processes", "least"),
    [
        ("20/minute", "10%", 3, 10),
        ("32/minute", "50%", 3, 16),
        ("1/minute", "50%", 3, 1),
        ("500/minute", "10%", 7, 150),
    ],
)
def test_many_processes_never_exceed_the_limit(limits: str, lease: str, processes: int, least: int) -> None:
    """A process that cannot take a whole share asks for single hits. A small limit is a log, which takes shares too."""
    limiters, _, clock = setup(limits, lease, processes, "sliding-window")
    amount = int(limits.partition("/")[0])
    for _ in range(3):
        assert least <= sum(limiters[i % processes].hit(WHO).allowed for i in range(4 * amount + 200)) <= amount
        clock.advance(120)


def test_a_share_is_at_most_half_of_the_rest() -> None:
    """Near the limit, other processes find units in the store."""
    (limiter,), _, _ = setup()
    rests = dict.fromkeys(left(limiter) for _ in range(98) if limiter.hit(WHO))
    assert list(rests) == [99, 49, 25, 13, 7, 4, 2]


def test_several_limits_are_served_from_leases(way: Any) -> None:
    """With leases of all limits no call is made; a peek makes one."""
    (limiter,), store, _ = setup("100/minute; 1000/hour")
    assert all(way(limiter).hit(WHO) for _ in range(20))
    assert store.calls == 2
    assert [decision.remaining for decision in way(limiter).peek(WHO, cost=0).decisions] == [49, 499]
    assert store.calls == 3


@each(("features", "consumed"), [(WHO, 5 + 49), (THIRD, 4)])
def test_a_lease_serves_no_hit_from_its_end_on(features: dict[str, str], consumed: int) -> None:
    """A request at that instant, of any client, asks the store and returns the unused part. No earlier one does."""
    (limiter,), store, clock = setup()
    for _ in range(3):
        limiter.hit(WHO)
    clock.advance(2.9)
    calls = store.calls
    limiter.hit(WHO)
    assert store.calls == calls
    limiter.hit(ANOTHER)
    assert left(limiter) == 100 - 1 - 50
    clock.advance(0.1)
    calls = store.calls
    limiter.hit(features)
    assert store.calls == calls + 2
    assert left(limiter) == 100 - consumed


def test_a_request_returns_at_most_four_leases() -> None:
    """Many keys that become idle at once are returned a few at a time, so no request waits for all of them."""
    (limiter,), _, clock = setup(lease="10%")
    keys = [{"ip": f"192.0.2.{i}"} for i in range(20)]
    for features in keys * 2:
        limiter.hit(features)
    clock.advance(3.1)
    back = []
    for i in range(6):
        limiter.hit({"ip": f"198.51.100.{i}"})
        back.append(sum(left(limiter, features) == 98 for features in keys))
    assert back == [4, 8, 12, 16, 20, 20]


def test_leases_of_different_lives_are_returned_when_they_end() -> None:
    """A long lease that was taken first does not delay a short one."""
    clock, store = ManualClock(1_000_000.0), SharedStore()
    rules = [
        Rule(name=name, limits=limits, lease="10%", match={"path": f"/{name}"}, algorithm="fixed-window")
        for name, limits in (("slow", "100/hour"), ("fast", "100/minute"))
    ]
    limiter = Limiter(rules, store, clock, Settings(rejection_cache=0))
    slow, fast = ({**WHO, "path": path} for path in ("/slow", "/fast"))
    for features in (slow, slow, fast, fast):
        limiter.hit(features)
    clock.advance(4)
    limiter.hit({**ANOTHER, "path": "/fast"})
    assert left(limiter, fast) == 100 - 2
    assert left(limiter, slow) == 100 - 1 - 10


def test_close_returns_all_leases(way: Any) -> None:
    """After close the store counts only the consumed cost."""
    (limiter, other), _, _ = setup("1000/minute", "2%", 2)
    keys = [{"ip": str(i)} for i in range(250)]
    for features in keys * 3:
        way(limiter).hit(features)
    for _ in range(2):
        way(limiter).close()
    assert {left(other, features) for features in keys} == {997}


@each(("failures", "calls"), [(0, 2), (3, 0)])
def test_close_during_an_outage_raises_nothing(way: Any, failures: int, calls: int) -> None:
    """Shares that cannot be returned lapse. With an open breaker, close makes no call."""
    (limiter,), store, _ = setup()
    for _ in range(3):
        limiter.hit(WHO)
    store.down = True
    for _ in range(failures):
        limiter.hit(ANOTHER)
    before = store.calls
    way(limiter).close()
    assert store.calls == before + calls, "one for the announcement of this process, one for shares"


def test_a_lease_that_ends_while_the_breaker_is_open_is_returned_later() -> None:
    """The store is not called then, so the unused part is kept."""
    (limiter,), store, clock = setup()
    limiter.hit(WHO)
    limiter.hit(WHO)
    store.down = True
    for seconds in (0, 0, 0, 3.1):
        clock.advance(seconds)
        limiter.hit(ANOTHER)
    store.down = False
    limiter.remote.breaker.recover(0)  # type: ignore[union-attr]
    limiter.hit(ANOTHER)
    assert left(limiter) == 98


def test_an_outage_leaves_only_leases_to_return() -> None:
    """However long it is. Afterwards a request returns a hundred of them at most."""
    (limiter,), store, clock = setup("1000/minute", "2%")
    keys, remote = [{"ip": str(i)} for i in range(150)], cast(Any, limiter.remote)
    for features in keys * 2:
        limiter.hit(features)
    store.down = True
    for seconds in (0, 0, 0, *[3.1] * 3):
        clock.advance(seconds)
        for features in keys * 2 if seconds else [ANOTHER]:
            limiter.hit(features)
    assert len(remote.leases._ended) == 150
    store.down = False
    remote.breaker.recover(0)
    back = []
    for _ in range(2):
        limiter.hit(ANOTHER)
        back.append(sum(left(limiter, features) == 998 for features in keys))
    assert back == [100, 150]


def test_a_reset_drops_the_lease() -> None:
    """A share from before a reset is neither consumed nor returned after it."""
    (limiter,), store, _ = setup()
    for _ in range(3):
        limiter.hit(WHO)
    limiter.reset("api", WHO)
    before = store.calls
    assert [limiter.hit(WHO).decisions[0].remaining for _ in range(2)] == [99, 98]
    assert store.calls == before + 1
    limiter.close()
    assert left(limiter) == 98


@each(("meanwhile", "rest"), [(None, 98), (ANOTHER, 98), (WHO, 78)])
def test_a_share_that_arrives_after_its_life_is_returned(meanwhile: Any, rest: int) -> None:
    """The request itself is allowed. Another request may have removed the lease meanwhile, or taken the next one."""
    (limiter,), store, clock = setup(lease="20%")
    limiter.hit(WHO)
    plain = store.apply
    with pytest.MonkeyPatch.context() as patch:

        def slow(*arguments: Any) -> Any:
            patch.undo()
            decisions = plain(*arguments)
            clock.advance(3)
            if meanwhile:
                limiter.hit(meanwhile)
            return decisions

        patch.setattr(store, "apply", slow)
        assert limiter.hit(WHO)
    before = store.calls
    limiter.hit(THIRD)
    assert store.calls == before + 2
    assert left(limiter) == rest


@pytest.mark.slow
@each("seed", range(5))
def test_a_period_sees_at_most_one_share_per_process_more(seed: int) -> None:
    """By the clock, only leases that were alive at its start add to a period."""
    limiters, _, clock = setup("60/minute", "10%", 3, "sliding-window-log")
    chance, passed = random.Random(seed), []
    for _ in range(2_000):
        clock.advance(chance.choice((0, 0.01, 0.2, 1)))
        if chance.choice(limiters).hit(WHO):
            passed.append(clock())
    worst = max(bisect(passed, at + 60_000_000 - 1) - i for i, at in enumerate(passed))
    assert 60 <= worst <= 60 + 3 * 6


def test_remaining_counts_down_within_a_lease() -> None:
    """Remaining falls by one per hit, and reset_after continues to 0, when the bucket of the store is full again."""
    (limiter,), _, clock = setup("1000/minute", "2%")
    assert [limiter.hit(WHO).decisions[0].remaining for _ in range(60)] == list(range(999, 939, -1))
    before = limiter.hit(WHO).decisions[0].reset_after
    clock.advance(1.0)
    assert limiter.hit(WHO).decisions[0].reset_after == pytest.approx(before - 1.0)
    (limiter,), _, clock = setup("1000/minute", "2%", algorithm="gcra")
    assert [limiter.hit(WHO) and clock.advance(second) for second in (0, 2.5)]
    assert limiter.hit(WHO).decisions[0].reset_after == 0


def test_a_refund_of_a_leased_hit_reaches_the_store(way: Any) -> None:
    """The store counted the hit as part of the share."""
    (limiter,), _, _ = setup(lease="10%")
    verdicts = [limiter.hit(WHO) for _ in range(11)]
    before = left(limiter)
    for _ in range(2):
        way(limiter).refund(verdicts[5])
    assert left(limiter) == before + 1


def test_concurrent_tasks_take_one_share_at_a_time() -> None:
    """A burst of concurrent requests does not take a share each."""
    (limiter,), _, _ = setup("1000/minute", "2%")

    async def scenario() -> None:
        for _ in range(20):
            await limiter.ahit(WHO)
        assert all(await asyncio.gather(*(limiter.ahit(WHO) for _ in range(30))))

    asyncio.run(scenario())
    assert left(limiter) >= 1000 - 50 - 20


def test_threads_share_a_lease_exactly() -> None:
    """Eight threads on one leased key get the limit and not one more."""
    (limiter,), _, _ = setup("1000/minute", "5%")
    with ThreadPoolExecutor(8) as pool:
        hits = [pool.submit(lambda: sum(limiter.hit(WHO).allowed for _ in range(400))) for _ in range(8)]
    assert sum(each.result() for each in hits) == 1000


def test_a_failing_store_is_called_once_per_request(way: Any) -> None:
    """After a failed call for a share or a return, the policy decides at once, by the cost of the request."""
    (limiter,), store, clock = setup()

    def hit() -> int:
        before = store.calls
        left_here.append(way(limiter).hit(WHO).decisions[0].remaining)
        return store.calls - before

    left_here: list[int] = []
    assert hit() == 1
    store.down = True
    assert hit() == 1  # a draw
    store.down = False
    clock.advance(3.5)
    assert (hit(), hit(), hit()) == (1, 1, 0)  # alone, a draw, out of the lease
    store.down = True
    clock.advance(3.5)
    assert hit() == 1  # a give-back
    assert left_here[1] == 98  # the first hit is known
    assert left_here[-1] == 47  # without the share that this process holds
    assert sum(limiter.hit(WHO).allowed for _ in range(200)) == 47


def test_a_cost_of_zero_is_decided_without_a_share() -> None:
    """After a rejected share, and after a share without a reply."""
    (limiter, other), store, _ = setup("10/minute", processes=2)
    for _ in range(8):
        other.hit(WHO)
    other.close()
    for _ in range(2):
        limiter.hit(WHO)
    assert limiter.hit(WHO, cost=0).decisions[0].remaining == 0
    store.down = True
    for _ in range(2):
        limiter.hit(ANOTHER)
    assert limiter.hit(ANOTHER, cost=0)


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a maximum of leases; the oldest are returned. No more keys are known as busy."""
    monkeypatch.setattr(leases, "MAX_KEYS", 100)
    (limiter,), _, _ = setup("1000/minute", "2%")
    for i in (*range(101), 0):
        limiter.hit({"ip": str(i)})
    assert left(limiter, {"ip": "0"}) == 998
    (limiter,), _, _ = setup("1000/minute", "2%")
    keys = [{"ip": str(i)} for i in range(150)]
    for features in keys:
        for _ in range(2):
            limiter.hit(features)
    assert [left(limiter, features) for features in keys] == [998] * 50 + [979] * 100
