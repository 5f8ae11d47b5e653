"""``Number``: counts without a lock."""

from __future__ import annotations

from ratelimit_mw.limiter.observers.readers import Number


def test_a_number_is_taken() -> None:
    """Each ``take`` gives what was counted since the one before."""
    number = Number()
    for counted in (3, 0, 2):
        for _ in range(counted):
            next(number.counter)
        assert number.take() == counted
    assert number.take() == 0
