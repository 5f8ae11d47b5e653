"""The circuit breaker: opens after failures in a row, probes ever more slowly, one caller at a time."""

from __future__ import annotations

from ratelimit_mw.limiter.breaker import Breaker

SECOND = 1_000_000


def opened(at: int = 0) -> Breaker:
    breaker = Breaker()
    assert [breaker.failed(at, at) for _ in range(3)] == [False, False, True]
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    """Two failures and a success are forgiven; the third in a row opens, and says so once."""
    breaker = Breaker()
    breaker.failed(0, 0)
    breaker.failed(0, 0)
    breaker.succeeded()
    breaker.succeeded()
    assert not breaker.open
    assert (breaker.open, breaker.openings) == (False, 0)
    assert [breaker.failed(0, 0) for _ in range(4)] == [False, False, True, False]
    assert (breaker.open, breaker.openings) == (True, 1)


def test_probes_come_one_at_a_time_and_at_most_a_second_apart() -> None:
    """In ten seconds of constant asking a handful of probes are granted, the gaps growing to a second."""
    breaker = opened()
    granted = [now for now in range(0, 10 * SECOND, 1000) if breaker.takes_probe(now)]
    gaps = [later - earlier for earlier, later in zip([0, *granted], granted, strict=False)]
    assert SECOND // 5 <= gaps[0] <= SECOND // 4 + 1000
    assert max(gaps) <= SECOND + 1000
    assert 10 <= len(granted) <= 14


def test_a_fleet_does_not_probe_as_one() -> None:
    """Breakers that opened at the same moment probe at different ones."""
    firsts = set()
    for _ in range(20):
        breaker = opened()
        firsts.add(next(now for now in range(SECOND) if breaker.takes_probe(now)))
    assert len(firsts) > 10


def test_closing_tells_for_how_long_it_was_open() -> None:
    """The log line after a recovery can say how long it took; a second recovery has nothing to say."""
    breaker = opened(at=5 * SECOND)
    assert breaker.close(7 * SECOND) == 2 * SECOND
    assert breaker.close(8 * SECOND) == 0
    assert not breaker.takes_probe(100 * SECOND)


def test_calls_that_fail_together_are_one_failure() -> None:
    """A hundred requests that wait for one answer, or share one call, do not open it at a single hiccup."""
    breaker = Breaker()
    assert not any(breaker.failed(began, 50_000 + began) for began in range(100))
    assert not breaker.failed(60_000, 110_000)
    assert breaker.failed(120_000, 170_000)


def test_calls_from_before_a_recovery_do_not_open_it_again() -> None:
    """They say nothing of the store as it is now."""
    breaker = opened()
    breaker.close(SECOND)
    assert not any(breaker.failed(SECOND - 1, 2 * SECOND) for _ in range(3))
    assert [breaker.failed(2 * SECOND, 2 * SECOND) for _ in range(3)] == [False, False, True]
