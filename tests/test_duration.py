"""Durations and costs: the forms that are read, and the errors."""

import math
from typing import Any

import pytest
from tables import each

from ratelimit_mw import ConfigError
from ratelimit_mw.quota import MAX_PERIOD, checked_cost, parse_duration

SECOND = 1_000_000
MINUTE, DAY = 60 * SECOND, 86_400 * SECOND


@each(
    ("value", "us"),
    [
        ("250ms", 250_000),
        ("2s", 2 * SECOND),
        ("15 minutes", 15 * MINUTE),
        (" 1.5 H ", 90 * MINUTE),
        ("0s", 0),
        ("0.000001s", 1),
        ("1w", 7 * DAY),
        (0, 0),
        (1.5, 1_500_000),
        (3, 3 * SECOND),
        (0.0000005, 0),
        (366 * 86_400, MAX_PERIOD),
    ],
)
def test_a_duration_is_read(value: Any, us: int) -> None:
    """From text with a unit, or from seconds; always whole microseconds."""
    assert parse_duration(value) == us


@each(
    "value",
    [
        *("", "5", "s", "5 parsecs", "-1s", "1e3s", "1.s", ".5s", "1h30m", "soon", -1, -0.1, math.nan, math.inf),
        *(True, None, b"5s", [5]),
    ],
)
def test_what_is_no_duration_is_an_error_that_shows_it(value: Any) -> None:
    """A number without a unit is text that means nothing, and no duration is negative."""
    with pytest.raises(ConfigError) as error:
        parse_duration(value)
    assert f"got {value!r}" in str(error.value)


def test_a_cost_is_a_whole_number() -> None:
    """From 0, which is a look, to 10^12; a negative cost would hand out quota."""
    assert [checked_cost(cost) for cost in (0, 1, 10**12)] == [0, 1, 10**12]
    for cost in (-1, 10**12 + 1, 1.0, "1", True, None):
        with pytest.raises(ConfigError) as error:
            checked_cost(cost)
        assert f"got {cost!r}" in str(error.value)
