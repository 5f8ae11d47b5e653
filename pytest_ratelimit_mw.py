"""The pytest plugin. Every run of pytest beside which the package is installed imports it, so it imports nothing of it.

That is why it stands beside the package and not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ratelimit_mw.testing import ManualClock

__all__ = ["ratelimit_clock", "ratelimit_off"]

_NOON = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC; every window of up to an hour begins here, whenever a test runs


@pytest.fixture
def ratelimit_clock() -> Iterator[ManualClock]:
    """Rate limits on a clock set by hand, each test with counts of its own: ratelimit_clock.advance(60)."""
    from ratelimit_mw.testing import ManualClock, limits_timed_by

    clock = ManualClock(_NOON)
    with limits_timed_by(clock):
        yield clock


@pytest.fixture
def ratelimit_off() -> Iterator[None]:
    """No rate limits: every request is allowed, nothing is counted, and limited views may be called directly."""
    from ratelimit_mw.testing import limits_off

    with limits_off():
        yield
