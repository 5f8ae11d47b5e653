"""The pytest plugin, with the fixtures `ratelimit_clock` and `ratelimit_off`.

Every pytest run imports this module when the package is installed. The module is therefore outside the package, and
imports the package only inside a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ratelimit_mw.testing import ManualClock

__all__ = ["ratelimit_clock", "ratelimit_off"]

_NOON = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC, the beginning of a minute and of an hour


@pytest.fixture
def ratelimit_clock() -> Iterator[ManualClock]:
    """Put all rate limits on a clock that only the test moves, with empty counts: ratelimit_clock.advance(60)."""
    from ratelimit_mw.testing import ManualClock, limits_timed_by

    clock = ManualClock(_NOON)
    with limits_timed_by(clock):
        yield clock


@pytest.fixture
def ratelimit_off() -> Iterator[None]:
    """Turn all rate limits off: every request is allowed, and limited views can be called directly."""
    from ratelimit_mw.testing import limits_off

    with limits_off():
        yield
