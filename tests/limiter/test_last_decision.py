"""What a process last knew of a key: its refunds and settlements change it, and its times hold without the store."""

from typing import Any

from limiter_ways import Blocking
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule
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
ALGORITHMS = ["sliding-window-counter", "sliding-window-log", "tiered-window", "fixed-window", *BUCKETS, INTERVAL]


class Outage:
    """A limiter whose store goes away at the first hit ``without`` it."""

    def __init__(self, way: Any, limits: str, **options: Any) -> None:
        self.store, self.clock = SharedStore(), ManualClock(START)
        rule = Rule(name="api", limits=limits, **options)
        self.limiter = Limiter([rule], self.store, self.clock, Settings(fleet_size=1, rejection_cache=0))
        self.call = way(self.limiter)

    def without(self, hits: int) -> int:
        """Count the allowed hits without the store."""
        self.store.down = True
        return sum(self.call.hit(WHO, 1).allowed for _ in range(hits))


def test_a_second_outage_continues_from_the_first(way: Any) -> None:
    """The store does not know the hits of the first."""
    mine = Outage(way, "10/hour", algorithm="fixed-window")
    mine.call.hit(WHO, 2)
    assert mine.without(2) == 2
    mine.store.down = False
    mine.call.hit(WHO)
    assert mine.without(9) == 6


def test_a_slot_that_was_returned_is_free_without_the_store(way: Any) -> None:
    """A process rejects no request for a slot that it has returned itself."""
    mine = Outage(way, "1 concurrent")
    mine.call.conclude(mine.call.hit(WHO), 200)
    assert mine.without(2) == 1


@each("algorithm", ["sliding-window", *ALGORITHMS])
def test_responses_that_do_not_count_leave_the_whole_limit(way: Any, algorithm: Any) -> None:
    """Five logins under way, two of which fail: three more may fail without the store."""
    mine = Outage(way, "5/hour", algorithm=algorithm, count_unless={"status": 302})
    verdicts = [mine.call.hit(WHO) for _ in range(5)]
    for verdict, status in zip(verdicts, (302, 302, 401, 401, 302), strict=True):
        mine.call.conclude(verdict, status)
    assert mine.without(9) == 3


@each("algorithm", ALGORITHMS)
def test_a_settled_cost_counts_without_the_store(way: Any, algorithm: Any) -> None:
    """The rest is what the true cost leaves. A bucket has drained by 2 since the hit."""
    mine = Outage(way, "1000/hour", algorithm=algorithm)
    verdict = mine.call.hit(WHO)
    mine.clock.advance(4)
    mine.call.settle(verdict, 998)
    mine.clock.advance(4)
    assert mine.without(9) == (4 if algorithm in BUCKETS else 2)


@each(("seconds", "cost", "rest"), [(60, 9, 6), (0, 99, 0)])
def test_a_settlement_beyond_the_limit_leaves_nothing(way: Any, seconds: int, cost: int, rest: int) -> None:
    """A settlement of a hit whose window is over counts in the new window."""
    mine = Outage(way, "10/minute", algorithm="fixed-window")
    verdict = mine.call.hit(WHO, 5)
    mine.clock.advance(seconds)
    mine.call.settle(verdict, cost)
    assert mine.without(9) == rest


@each(("spec", "back"), [("fixed-window", 0), ("sliding-window-log", 5), ("gcra", 3), (QUEUE, 0), (INTERVAL, 5)])
def test_a_refund_adds_what_the_store_gives_back(spec: Any, back: int) -> None:
    """The part of a cost that has left its window, or has drained, is no part of the rest."""
    limit, at, later = limit_of("10/minute", spec), int(START - 1) * SECOND, int(START + 11) * SECOND
    change = Correction(limit, "key", 5, Charge(at, 5))
    last = LastDecision(2, at, SECOND)
    assert last.corrected(change, later).rest == 2 + back
    assert last.corrected(change, at - 1) is last, "the store has decided after the refund"
    assert last._replace(at_us=at + 1).corrected(change, later).rest == 2, "the store has decided after the charge"
    assert last._replace(rest=9).corrected(change, later).rest == (10 if back else 9)


@each("algorithm", ALGORITHMS)
@each("is_reset_here", [True, False])
def test_a_refund_from_before_a_reset_is_void_without_the_store(way: Any, algorithm: Any, is_reset_here: bool) -> None:
    """What a process knows of a key does not grow by a refund that the store did not make."""
    mine = Outage(way, "50/hour", algorithm=algorithm)
    early = mine.call.hit(WHO, 49)
    mine.clock.advance(60)
    if is_reset_here:
        mine.limiter.reset("api", WHO)
    else:
        mine.store.forget([early.decisions[0].key])
    late = mine.call.hit(WHO, 10)
    mine.call.hit(WHO, 40)
    mine.call.settle(early, 0)
    mine.call.settle(late, 3)
    assert mine.without(99) == 7


@each("algorithm", ALGORITHMS)
@each("seconds", [5, 40])
@each("cost", [5, 4])
def test_a_rejection_by_the_store_ends_in_time_without_it(algorithm: Any, seconds: int, cost: int) -> None:
    """The time in the response of the store holds, to the microsecond. The counter's may be later, never earlier."""
    mine = Outage(Blocking, "5/minute", algorithm=algorithm)
    mine.call.hit(WHO, cost)
    mine.clock.advance(seconds)
    by_store = mine.call.hit(WHO, 5)
    mine.store.down = True
    here = mine.call.hit(WHO, 5)
    assert (by_store.allowed, here.allowed, here.decisions[0].local) == (False, False, True)
    if algorithm == "sliding-window-counter":
        assert here.retry_after >= by_store.retry_after
    else:
        assert here.retry_after == by_store.retry_after
