"""What a process last knew of a key: its refunds and settlements change it, and its times hold without the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Charge, Correction
from ratelimit_mw.limiter.remote.cache import LastDecision
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.store_suite import limit_of

WHO = {"ip": "192.0.2.7"}
START = 1_000_020.0  # the start of a minute
BUCKETS = ("gcra", "token-bucket", "leaky-bucket")
QUEUE = {"name": "leaky-bucket", "mode": "queue"}
INTERVAL = {"name": "token-bucket", "refill": "interval"}
EXACT: list[Any] = ["sliding-window-log", "tiered-window", "fixed-window", *BUCKETS, INTERVAL]


class Outage:
    """A limiter whose store goes away at the first hit ``without`` it."""

    def __init__(self, rule: Rule, loop: asyncio.Runner | None = None, fleet_size: int = 1) -> None:
        self.store, self.clock, self.loop = SharedStore(), ManualClock(START), loop
        settings = Settings(fleet_size=fleet_size, rejection_cache=0)
        self.limiter = Limiter([rule], self.store, self.clock, settings)

    def hit(self, cost: int | None = None) -> Verdict:
        return self._do("hit", WHO, cost)

    def settle(self, verdict: Verdict, cost: int) -> None:
        self._do("settle", verdict, cost)

    def conclude(self, verdict: Verdict, status: int) -> None:
        self._do("conclude", verdict, status)

    def without(self, hits: int) -> int:
        """Count the allowed hits without the store."""
        self.store.down = True
        return sum(self.hit(1).allowed for _ in range(hits))

    def _do(self, name: str, *arguments: Any) -> Any:
        if self.loop is None:
            return getattr(self.limiter, name)(*arguments)
        return self.loop.run(getattr(self.limiter, f"a{name}")(*arguments))


@pytest.fixture(params=["sync", "async"])
def outage(request: pytest.FixtureRequest) -> Iterator[Callable[..., Outage]]:
    with asyncio.Runner() as loop:
        yield lambda rule, **settings: Outage(rule, loop if request.param == "async" else None, **settings)


def test_a_slot_that_was_returned_is_free_without_the_store(outage: Callable[..., Outage]) -> None:
    """A process rejects no request for a slot that it has returned itself."""
    mine = outage(Rule(name="api", limits="1 concurrent"))
    mine.conclude(mine.hit(), 200)
    assert mine.without(2) == 1


@pytest.mark.parametrize("algorithm", ["sliding-window", "sliding-window-counter", "gcra", *EXACT])
def test_responses_that_do_not_count_leave_the_whole_limit(outage: Callable[..., Outage], algorithm: Any) -> None:
    """Five logins under way, two of which fail: three more may fail without the store."""
    mine = outage(Rule(name="api", limits="5/hour", algorithm=algorithm, count_unless={"status": 302}))
    verdicts = [mine.hit() for _ in range(5)]
    for verdict, status in zip(verdicts, (302, 302, 401, 401, 302), strict=True):
        mine.conclude(verdict, status)
    assert mine.without(9) == 3


@pytest.mark.parametrize("algorithm", ["sliding-window-counter", *EXACT])
def test_a_settled_cost_counts_without_the_store(outage: Callable[..., Outage], algorithm: Any) -> None:
    """The rest is what the true cost leaves. A bucket has drained by 2 since the hit."""
    mine = outage(Rule(name="tokens", limits="1000/hour", algorithm=algorithm))
    verdict = mine.hit()
    mine.clock.advance(4)
    mine.settle(verdict, 998)
    mine.clock.advance(4)
    assert mine.without(9) == (4 if algorithm in BUCKETS else 2)


def test_a_settlement_beyond_the_limit_leaves_nothing(outage: Callable[..., Outage]) -> None:
    """A settlement of a hit whose window is over counts in the new window."""
    mine = outage(Rule(name="tokens", limits="10/minute", algorithm="fixed-window"))
    verdict = mine.hit(5)
    mine.clock.advance(60)
    mine.settle(verdict, 9)
    assert mine.without(9) == 6
    mine = outage(Rule(name="tokens", limits="10/minute", algorithm="fixed-window"))
    mine.settle(mine.hit(5), 99)
    assert mine.without(9) == 0


@pytest.mark.parametrize(
    ("spec", "back"), [("fixed-window", 0), ("sliding-window-log", 5), ("gcra", 3), (QUEUE, 0), (INTERVAL, 5)]
)
def test_a_refund_adds_what_the_store_gives_back(spec: Any, back: int) -> None:
    """The part of a cost that has left its window, or has drained, is no part of the rest."""
    limit, at, later = limit_of("10/minute", spec), int(START - 1) * SECOND, int(START + 11) * SECOND
    change = Correction(limit, "key", 5, Charge(at, 5))
    last = LastDecision(2, later - 1, SECOND, at)
    assert last.corrected(change, later).rest == 2 + back
    assert last.corrected(change, later - 2) is last, "the store has decided after the refund"
    assert last._replace(rest=9).corrected(change, later).rest == (10 if back else 9)


@pytest.mark.parametrize("algorithm", ["sliding-window-counter", *EXACT])
@pytest.mark.parametrize("resets", ["this process", "another process"])
def test_a_refund_from_before_a_reset_is_void_without_the_store(
    outage: Callable[..., Outage], algorithm: Any, resets: str
) -> None:
    """What a process knows of a key does not grow by a refund that the store did not make."""
    mine = outage(Rule(name="api", limits="50/hour", algorithm=algorithm))
    early = mine.hit(49)
    mine.clock.advance(60)
    if resets == "this process":
        mine.limiter.reset("api", WHO)
    else:
        mine.store.forget([early.decisions[0].key])
    late = mine.hit(10)
    mine.hit(40)
    mine.settle(early, 0)
    mine.settle(late, 3)
    assert mine.without(99) == 7


@pytest.mark.parametrize("algorithm", ["sliding-window-counter", *EXACT])
@pytest.mark.parametrize("seconds", [5, 40])
@pytest.mark.parametrize("cost", [5, 4])
def test_a_rejection_by_the_store_ends_in_time_without_it(algorithm: Any, seconds: int, cost: int) -> None:
    """The time in the response of the store holds, to the microsecond. The counter's may be later, never earlier."""
    mine = Outage(Rule(name="api", limits="5/minute", algorithm=algorithm))
    mine.hit(cost)
    mine.clock.advance(seconds)
    by_store = mine.hit(5)
    mine.store.down = True
    here = mine.hit(5)
    assert not by_store
    assert not here
    assert here.decisions[0].local
    if algorithm == "sliding-window-counter":
        assert here.retry_after >= by_store.retry_after  # type: ignore[operator]
    else:
        assert here.retry_after == by_store.retry_after
