"""The circuit breaker: it opens after failures in a row, and probes at growing intervals, one caller at a time."""

import pytest

from ratelimit_mw.limiter.remote.breaker import Breaker

SECOND = 1_000_000


def closed_breaker() -> Breaker:
    return Breaker("redis://cache:6379/0")


def open_breaker(at: int = 0) -> Breaker:
    breaker = closed_breaker()
    assert [breaker.count_failure(breaker.epoch, at) for _ in range(3)] == [False, False, True]
    return breaker


def test_three_failures_in_a_row_open_the_breaker() -> None:
    """A success after two failures resets the count. The third failure in a row opens the breaker, once."""
    breaker = closed_breaker()
    for _ in range(2):
        breaker.count_failure(breaker.epoch, 0)
    breaker.failures = 0
    assert (breaker.open, breaker.failures) == (False, 0)
    assert [breaker.count_failure(breaker.epoch, 0) for _ in range(4)] == [False, False, True, False]
    assert breaker.open


def test_probes_are_granted_one_at_a_time_at_most_a_second_apart() -> None:
    """In ten seconds of constant calls a handful of probes are granted, at intervals that grow to a second."""
    breaker = open_breaker()
    granted = [now for now in range(0, 10 * SECOND, 1000) if breaker.takes_probe(now)]
    gaps = [later - earlier for earlier, later in zip([0, *granted], granted, strict=False)]
    assert SECOND // 5 <= gaps[0] <= SECOND // 4 + 1000
    assert max(gaps) <= SECOND + 1000
    assert 10 <= len(granted) <= 14


def test_the_breakers_of_a_fleet_probe_at_different_moments() -> None:
    """Each interval has a random part."""
    first_probes = set()
    for _ in range(20):
        breaker = open_breaker()
        first_probes.add(next(now for now in range(0, SECOND, 500) if breaker.takes_probe(now)))
    assert len(first_probes) > 10


def test_recover_logs_once_how_long_the_breaker_was_open(caplog: pytest.LogCaptureFixture) -> None:
    """No probe is granted while the breaker is closed."""
    breaker = open_breaker(at=5 * SECOND)
    for now in (7, 8):
        breaker.recover(now * SECOND)
    assert caplog.messages == ["store redis://cache:6379/0 reachable again after 2.0 s"]
    assert not breaker.takes_probe(100 * SECOND)


def test_calls_that_fail_together_count_as_one_failure() -> None:
    """A hundred concurrent requests do not open the breaker."""
    breaker = closed_breaker()
    epoch = breaker.epoch
    assert not any(breaker.count_failure(epoch, 50_000 + i) for i in range(100))
    assert breaker.failures == 1
    assert not breaker.count_failure(breaker.epoch, 110_000)
    assert breaker.count_failure(breaker.epoch, 170_000)


def test_calls_from_before_a_recovery_do_not_open_the_breaker_again() -> None:
    """They prove nothing about the store as it is now."""
    breaker = open_breaker()
    before = breaker.epoch
    breaker.recover(SECOND)
    assert not any(breaker.count_failure(before, 2 * SECOND) for _ in range(3))
    assert [breaker.count_failure(breaker.epoch, 2 * SECOND) for _ in range(3)] == [False, False, True]
