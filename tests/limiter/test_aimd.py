"""A limit of concurrent requests follows their times. The faults that others had with such limits are tests here."""

from tables import each

from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Tuning
from ratelimit_mw.limiter.adaptive import Aimd

TARGET = 250_000


def aimd(floor: int = 5, ceiling: int = 200) -> Aimd:
    return Aimd(Tuning("time", floor, ceiling, 0, TARGET), 0)


class Running:
    """A request in flight, until nothing refers to it."""


def allows(limit: Aimd, now: int, share: int = 100) -> bool:
    most = limit.amount(now) * share // 100 or 1
    return limit.claim(now, most, 100 - share) > 0


def enter(limit: Aimd, now: int, share: int = 100) -> Running:
    assert allows(limit, now, share)
    limit.requests.add(running := Running())
    return running


class Load:
    """A limit, and a clock that each second of requests advances."""

    def __init__(self, floor: int = 5, ceiling: int = 200) -> None:
        self.limit, self.now = aimd(floor, ceiling), 0

    def second(self, took: float = 0.1, requests: int = 120, dropped: int = 0, at_once: int | None = None) -> float:
        """Let some requests pass, in groups of as many as the limit allows at once, and return the limit after them."""
        limit, left = self.limit, requests
        while left:
            group = min(left, int(limit.limit) if at_once is None else at_once)
            running = [enter(limit, self.now) for _ in range(group)]
            while running:
                limit.note_response(int(took * SECOND), 503 if dropped > 0 else 500)  # which says nothing of the load
                dropped -= 1
                running.pop()
            left -= group
        self.now += SECOND
        allows(limit, self.now)
        return limit.limit


def test_it_doubles_from_the_start_until_a_window_is_slow_and_then_grows_by_one() -> None:
    """A slow window takes a fifth away. At the ceiling it stays."""
    load = Load()
    assert [load.second() for _ in range(3)] == [40, 80, 160]
    assert load.second(took=0.3) == 128
    assert [load.second() for _ in range(2)] == [129, 130]
    assert Load(ceiling=30).second() == 30
    assert [Load(floor=50).limit.limit, Load(ceiling=10).limit.limit, Load().limit.limit] == [50, 10, 20]


def test_it_stays_within_its_bounds() -> None:
    """The floor is never left, and from it the limit doubles again. The reason of the last change is known."""
    load = Load()
    reasons = [load.limit.reason]
    assert [load.second(took=0.3) for _ in range(9)][-1] == 5
    reasons.append(load.limit.reason)
    assert load.second() == 10
    reasons.append(load.limit.reason)
    load.second(dropped=120)
    assert [*reasons, load.limit.reason] == ["start", "slow", "grew", "dropped"]


@each(("slow", "limit"), [(0, 40), (12, 40), (13, 16)])
def test_a_tenth_of_the_requests_may_be_slow(slow: int, limit: float) -> None:
    """So a pause of garbage collection, which makes some slow, lowers nothing."""
    load, running = Load(), list[Running]()
    for i in range(120):
        running.append(enter(load.limit, load.now))
        load.limit.note_response(TARGET + (i < slow))
        if i < 100:
            running.pop()
    allows(load.limit, SECOND)
    assert load.limit.limit == limit


def test_a_limit_that_nobody_uses_does_not_grow() -> None:
    """It grows while at least 80% of it was in use, or a request was rejected."""
    load = Load()
    assert load.second(at_once=15) == 20
    assert load.second(at_once=16) == 40
    load = Load()
    running = [enter(load.limit, 0) for _ in range(12)]
    assert not allows(load.limit, 0, share=60)
    running.clear()
    assert load.second(at_once=5) == 40


def test_dropped_requests_never_raise_it() -> None:
    """A service that gives up early, so that all requests are fast, has the floor within 60 s and stays there."""
    load = Load()
    limits = [load.second(took=0.001, dropped=120) for _ in range(120)]
    assert set(limits[10:]) == {5}
    assert max(limits) < 20


def test_clients_that_leave_early_lower_no_limit() -> None:
    """Their requests are cancelled by some servers. Those that have left after the target have found it slow."""
    limit, now = aimd(), 0
    for took, expected in ((SECOND // 100, 20), (2 * SECOND, 16)):
        for _ in range(1_000):
            limit.note_response(took, None)
        now += SECOND
        assert limit.amount(now) == expected
    assert limit.reason == "slow"


def test_a_service_that_always_times_out_has_the_floor_within_60_s() -> None:
    """Few responses arrive then, and a window does not wait for a hundred of them."""
    limit, now = aimd(), 0
    limit.limit = 200.0
    running: list[tuple[int, Running]] = []
    while now < 120 * SECOND:
        now += SECOND // 100
        while running and running[0][0] <= now - 2 * SECOND:
            running.pop(0)
            limit.note_response(2 * SECOND, 504)
        while allows(limit, now):
            request = Running()
            limit.requests.add(request)
            running.append((now, request))
        if now >= 60 * SECOND:
            assert limit.limit == 5


def test_a_night_without_requests_changes_nothing() -> None:
    """The first burst of the morning has the limit of the evening."""
    load = Load()
    load.second()
    for _ in range(8):
        load.second(requests=1, took=0.3)
        load.now += 3600 * SECOND
    assert [allows(load.limit, load.now), load.limit.limit] == [True, 40]
    assert load.second() == 80


def test_the_lowest_class_is_rejected_first_and_let_in_again_last() -> None:
    """A class that is full keeps the classes below it out for a second. Each class may have one request."""
    limit = aimd(10, 10)
    running = [enter(limit, 0, 60) for _ in range(6)]
    assert [allows(limit, 0, share) for share in (60, 90, 100)] == [False, True, True]
    running += [enter(limit, 0, 90) for _ in range(3)]
    assert [allows(limit, 0, share) for share in (90, 100)] == [False, True]
    del running[3:]
    assert [allows(limit, 0, share) for share in (60, 90, 100)] == [False, True, True]
    assert [allows(limit, at, 60) for at in (SECOND - 1, SECOND)] == [False, True]
    running += [enter(limit, SECOND, 60) for _ in range(3)]
    assert not allows(limit, SECOND, 60)
    running.pop()
    assert allows(limit, SECOND, 60)
    assert allows(aimd(1, 1), 0, 60)


def test_a_class_with_its_last_place_keeps_lower_ones_out_and_a_look_does_not() -> None:
    limit = aimd()
    running = [enter(limit, 0) for _ in range(20)]
    assert limit.claim(2 * SECOND, 20, 0, begins=False) == 0
    del running[12:]
    assert [allows(limit, at, 90) for at in (SECOND - 1, 2 * SECOND)] == [False, True]
