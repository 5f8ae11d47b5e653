"""``Number``: counts without a lock."""

from __future__ import annotations

from ratelimit_mw.limiter.observers.number import Number


def test_a_number_is_read_and_taken() -> None:
    """Each read gives all that was counted, and each ``take`` what was counted since the one before."""
    number = Number()
    for counted in (3, 0, 2):
        for _ in range(counted):
            next(number.counter)
        assert number.take() == counted
    assert [number.read(), number.read(), number.take()] == [5, 5, 0]
