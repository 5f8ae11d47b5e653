"""The fixtures of behaviours that all frameworks share."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sites import PLACES, SITES, Build


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Iterator[Build]:
    """Build sites of one framework, which are closed at the end of the test."""
    with ExitStack() as stack:
        yield Build(request.param, SITES[request.param], stack)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Build]:
    """Build sites whose rule stands in one place, from the options of the rule and the view of ``/``."""
    with ExitStack() as stack:
        yield Build(request.param, PLACES[request.param], stack)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that requests have waited in a queue. No time passes."""
    found: list[float] = []
    real = asyncio.sleep

    async def asleep(seconds: float, result: Any = None) -> None:
        _ = seconds and found.append(seconds)
        await real(0)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    return found
