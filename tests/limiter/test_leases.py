"""Leases: fewer calls for a hot key, never more than the limit, and little left unused."""

from __future__ import annotations

import asyncio
import random
import threading
from bisect import bisect
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}


def setup(
    processes: int = 1, limits: str = "1000/minute", lease: str = "2%", **rule: object
) -> tuple[list[Limiter], SharedStore, ManualClock]:
    clock, store = ManualClock(1_000_000.0), SharedStore()
    rules = [Rule(name="api", limits=limits, lease=lease, **rule)]  # type: ignore[arg-type]
    return [Limiter(rules, store, clock, Settings(rejection_cache=0)) for _ in range(processes)], store, clock


def left(limiter: Limiter, features: dict[str, str]) -> int:
    """What remains in the store."""
    return limiter.peek(features, cost=0).decisions[0].remaining


def test_a_lease_serves_only_its_own_limit() -> None:
    """Limits of several plans may count under one key."""
    (limiter,), _, _ = setup(limits="100/hour", lease="10%", per={"plan": {"pro": ["100000/hour"]}})
    for count, plan in ((300, "pro"), (300, "free"), (5, "pro")):
        allowed = sum(limiter.hit({**WHO, "plan": plan}).allowed for _ in range(count))
        assert allowed == (0 if plan == "free" else count)
    two = [{"plan": "pro", **WHO}, {"plan": "free", **WHO}]
    assert [asyncio.run(limiter.ahit(features)).allowed for features in two] == [True, False]


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-window-counter", "tiered-window", "gcra"])
def test_one_process_gets_exactly_the_limit_with_few_calls(algorithm: str) -> None:
    """It asks once per share, and a few times more near the end of the limit."""
    (limiter,), store, _ = setup(algorithm=algorithm)
    allowed = sum(limiter.hit(WHO).allowed for _ in range(1000))
    assert allowed == 1000
    assert store.calls <= 50 + 10
    assert not limiter.hit(WHO)


def test_many_processes_never_exceed_the_limit() -> None:
    """A process that cannot take a whole share asks for single hits."""
    limiters, _, _ = setup(processes=7, limits="500/minute", lease="10%")
    allowed = sum(limiters[i % 7].hit(WHO).allowed for i in range(2000))
    assert 500 - 7 * 50 <= allowed <= 500


@pytest.mark.parametrize(("limits", "lease"), [("20/minute", "10%"), ("32/minute", "50%"), ("1/minute", "50%")])
def test_leases_of_a_small_amount_never_exceed_it(limits: str, lease: str) -> None:
    """The store keeps these counts in a log, which takes shares and their returns like single hits."""
    limiters, _, clock = setup(processes=3, limits=limits, lease=lease)
    amount = int(limits.partition("/")[0])
    for _ in range(3):
        assert amount * 0.5 <= sum(limiters[i % 3].hit(WHO).allowed for i in range(200)) <= amount
        clock.advance(60)


def test_an_ended_lease_is_returned_with_the_next_share() -> None:
    """After a twentieth of the period nothing is consumed from the lease."""
    (limiter,), store, clock = setup(limits="100/minute", lease="50%", algorithm="fixed-window")
    for _ in range(3):
        limiter.hit(WHO)
    clock.advance(3.1)
    limiter.hit(WHO)  # not seen within a lease's life: alone
    clock.advance(1.0)
    limiter.hit(WHO)  # hot again: returns 48, draws 50
    clock.advance(3.1)
    consumed = 100 - limiter.peek(WHO).decisions[0].remaining - 1
    assert consumed == 3 + 1 + 50
    assert store.calls == 2 + 1 + 2 + 1


def test_a_lease_serves_no_hit_from_its_end_on() -> None:
    """It ends after a twentieth of the period. The hit at that instant asks the store, which gets the rest back."""
    (limiter,), store, clock = setup(limits="100/minute", lease="50%", algorithm="fixed-window")
    for _ in range(3):
        limiter.hit(WHO)
    before = store.calls
    clock.advance(2.9)
    limiter.hit(WHO)
    assert store.calls == before
    clock.advance(0.1)
    limiter.hit(WHO)
    assert store.calls == before + 2
    assert left(limiter, WHO) == 100 - 4 - 50


def test_the_lease_of_an_idle_key_is_returned_with_another_key() -> None:
    """The next request that asks the store returns the unused part of an ended lease."""
    (limiter,), store, clock = setup(limits="100/minute", lease="50%", algorithm="fixed-window")
    for _ in range(3):
        limiter.hit(WHO)
    clock.advance(2.9)
    limiter.hit({"ip": "198.51.100.1"})
    assert left(limiter, WHO) == 100 - 1 - 50  # it is still to be consumed here
    clock.advance(0.1)
    before = store.calls
    limiter.hit({"ip": "198.51.100.2"})
    assert store.calls == before + 2
    assert left(limiter, WHO) == 100 - 3


def test_a_request_returns_at_most_four_leases() -> None:
    """Many keys that become idle at once are returned a few at a time, so no request waits for all of them."""
    (limiter,), _, clock = setup(limits="100/minute", lease="10%", algorithm="fixed-window")
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
    limiter.hit({"ip": "198.51.100.1", "path": "/fast"})
    assert left(limiter, fast) == 100 - 2
    assert left(limiter, slow) == 100 - 1 - 10


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_close_returns_all_leases(is_async: bool) -> None:
    """After close the store counts only the consumed cost."""
    (limiter, other), _, _ = setup(processes=2, limits="1000/minute", lease="2%")
    keys = [{"ip": str(i)} for i in range(250)]

    async def use() -> None:
        for features in keys * 3:
            await limiter.ahit(features)
        await limiter.aclose()

    if is_async:
        asyncio.run(use())
    else:
        for features in keys * 3:
            limiter.hit(features)
        limiter.close()
        limiter.close()
    assert {left(other, features) for features in keys} == {997}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_close_during_an_outage_raises_nothing(is_async: bool) -> None:
    """Shares that cannot be returned lapse."""
    (limiter,), store, _ = setup()
    for _ in range(3):
        limiter.hit(WHO)
    store.down = True
    before = store.calls
    if is_async:
        asyncio.run(limiter.aclose())
    else:
        limiter.close()
    assert store.calls == before + 2, "one for the announcement of this process, one for shares"


def test_a_reset_drops_the_lease() -> None:
    """A share from before a reset is neither consumed nor returned after it."""
    (limiter,), store, _ = setup(limits="100/minute", lease="50%", algorithm="fixed-window")
    for _ in range(3):
        limiter.hit(WHO)
    limiter.reset("api", WHO)
    before = store.calls
    assert [limiter.hit(WHO).decisions[0].remaining for _ in range(2)] == [99, 98]
    assert store.calls == before + 1
    limiter.close()
    assert left(limiter, WHO) == 98


def test_a_share_that_arrives_after_its_life_is_returned() -> None:
    """With a slow store the request itself is allowed, and the rest is not consumed too late."""
    (limiter,), store, clock = setup(limits="100/minute", lease="50%", algorithm="fixed-window")
    limiter.hit(WHO)
    plain = store.apply

    def slow(*told: Any) -> Any:
        decisions = plain(*told)
        clock.advance(3.5)
        return decisions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "apply", slow)
        assert limiter.hit(WHO)
    before = store.calls
    limiter.hit({"ip": "198.51.100.1"})
    assert store.calls == before + 2
    assert left(limiter, WHO) == 98


@pytest.mark.parametrize("seed", range(5))
def test_a_period_sees_at_most_one_share_per_process_more(seed: int) -> None:
    """By the clock, only leases that were alive at its start add to a period."""
    limiters, _, clock = setup(processes=3, limits="60/minute", lease="10%", algorithm="sliding-window-log")
    chance, passed = random.Random(seed), []
    for _ in range(4_000):
        clock.advance(chance.choice((0, 0.01, 0.2, 1)))
        if chance.choice(limiters).hit(WHO):
            passed.append(clock())
    worst = max(bisect(passed, at + 60_000_000 - 1) - i for i, at in enumerate(passed))
    assert 60 <= worst <= 60 + 3 * 6


def test_remaining_counts_down_within_a_lease() -> None:
    """Remaining falls by one per hit, and reset_after continues."""
    (limiter,), _, clock = setup(algorithm="fixed-window")
    told = [limiter.hit(WHO).decisions[0].remaining for _ in range(60)]
    assert told == list(range(999, 939, -1))
    before = limiter.hit(WHO).decisions[0].reset_after
    clock.advance(1.0)
    assert limiter.hit(WHO).decisions[0].reset_after == pytest.approx(before - 1.0)


def test_a_refund_of_a_leased_hit_reaches_the_store() -> None:
    """The store counted the hit as part of the share."""
    (limiter,), _, _clock = setup(limits="100/minute", lease="10%", algorithm="fixed-window")
    verdicts = [limiter.hit(WHO) for _ in range(11)]
    before = limiter.peek(WHO).decisions[0].remaining
    limiter.refund(verdicts[5])
    limiter.refund(verdicts[5])
    assert limiter.peek(WHO).decisions[0].remaining == before + 1
    asyncio.run(limiter.arefund(verdicts[6]))
    assert limiter.peek(WHO).decisions[0].remaining == before + 2


def test_concurrent_tasks_take_one_share_at_a_time() -> None:
    """A burst of concurrent requests does not take a share each."""

    async def scenario() -> tuple[int, int]:
        (limiter,), _store, _ = setup(limits="1000/minute", lease="2%")
        for _ in range(2):
            await limiter.ahit(WHO)
        for _ in range(18):
            await limiter.ahit(WHO)
        verdicts = await asyncio.gather(*(limiter.ahit(WHO) for _ in range(30)))
        left = (await limiter.apeek(WHO)).decisions[0].remaining
        return sum(verdict.allowed for verdict in verdicts), left

    allowed, left = asyncio.run(scenario())
    assert allowed == 30
    assert left >= 1000 - 50 - 20 - 1


def test_threads_share_a_lease_exactly() -> None:
    """Eight threads on one leased key get the limit and not one more."""
    (limiter,), _, _ = setup(limits="1000/minute", lease="5%")
    allowed = []

    def work() -> None:
        allowed.append(sum(limiter.hit(WHO).allowed for _ in range(400)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 1000


def test_no_share_is_taken_during_an_outage() -> None:
    """The policy decides by the cost of the request."""
    (limiter,), store, _clock = setup(limits="100/minute", lease="50%")
    limiter.hit(WHO)
    store.down = True
    allowed = sum(limiter.hit(WHO).allowed for _ in range(200))
    assert 50 <= allowed <= 100


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_failing_store_is_called_once_per_request(is_async: bool) -> None:
    """After a failed call for a share or a return, the policy decides at once."""
    (limiter,), store, clock = setup(limits="100/minute", lease="50%", algorithm="fixed-window")

    def hit() -> int:
        before = store.calls
        verdict = asyncio.run(limiter.ahit(WHO)) if is_async else limiter.hit(WHO)
        left_here.append(verdict.decisions[0].remaining)
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


def test_a_cost_of_zero_is_decided_without_a_share() -> None:
    """After a rejected share, and after a share without a reply."""
    (limiter, other), store, _ = setup(processes=2, limits="10/minute", lease="50%", algorithm="fixed-window")
    for _ in range(8):
        other.hit(WHO)
    other.close()
    for _ in range(2):
        limiter.hit(WHO)
    assert limiter.hit(WHO, cost=0).decisions[0].remaining == 0
    store.down = True
    for features in ({"ip": "198.51.100.1"}, {"ip": "198.51.100.1"}):
        limiter.hit(features)
    assert limiter.hit({"ip": "198.51.100.1"}, cost=0)


@pytest.mark.slow
def test_leases_are_bounded() -> None:
    """There are at most 10,000 leases; the oldest are returned."""
    (limiter,), _, _ = setup()
    for i in range(10_050):
        limiter.hit({"ip": str(i)})
        limiter.hit({"ip": str(i)})
    leases = limiter.remote.leases  # type: ignore[union-attr]
    assert len(leases._by_key) <= 10_000
    assert len(leases._seen) <= 10_000
    assert left(limiter, {"ip": "7"}) == 998


@pytest.mark.parametrize(
    "options",
    [
        {"lease": "0%"},
        {"lease": "51%"},
        {"lease": "2"},
        {"lease": 2},
        {"lease": "2%", "mode": "shadow"},
        {"lease": "2%", "count_when": {"status": 401}},
        {"lease": "2%", "algorithm": {"name": "leaky-bucket", "mode": "queue"}},
    ],
    ids=str,
)
def test_an_invalid_lease_is_an_error(options: dict[str, object]) -> None:
    """A lease is 1% to 50%, of a rule that enforces and counts every outcome."""
    with pytest.raises(ConfigError, match="lease"):
        Rule(limits="100/minute", **options)  # type: ignore[arg-type]
