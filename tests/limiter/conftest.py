"""Stores and clocks that several tests of the limiter share."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from override_stores import limiter_of
from servers import HOST, Server
from shared_store import SharedStore

from ratelimit_mw import Limiter
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock


@pytest.fixture(params=[MemoryStore, SharedStore], ids=["memory", "shared"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture(params=["lmdb", "redis", "memcached"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own that processes share."""
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/state"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    end = "/0" if request.param == "redis" else ""
    return f"{request.param}://{HOST}:{server.port}{end}?prefix=o{uuid4().hex}:"


@pytest.fixture
def workers(url: str) -> Iterator[tuple[Limiter, Limiter]]:
    """Two limiters, each with its own connection to one store, as in two processes."""
    both = limiter_of(store=url), limiter_of(store=url)
    yield both
    for each in both:
        each.close()
