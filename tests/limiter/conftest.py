"""Stores and clocks that several tests of the limiter share."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from idle_workers import Later
from override_stores import Recording, limiter_of
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


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """The next request after ``later.passed += 11`` waits until the files are read."""
    return Later(monkeypatch)


@pytest.fixture
def shared() -> SharedStore:
    return SharedStore()


@pytest.fixture
def recording() -> Recording:
    return Recording()


SHARED = ["lmdb", "redis", "memcached"]


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of its own."""
    if kind == "memory":
        return "memory://"
    if kind == "lmdb":
        return f"lmdb://{request.getfixturevalue('tmp_path')}/state"
    server: Server = request.getfixturevalue(f"{kind}_server")
    end = "/0" if kind == "redis" else ""
    return f"{kind}://{HOST}:{server.port}{end}?prefix=o{uuid4().hex}:"


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest) -> str:
    """A store that processes share."""
    return url_of(request.param, request)


@pytest.fixture(params=["memory", *SHARED])
def any_url(request: pytest.FixtureRequest) -> str:
    """A store, also one that is in this process."""
    return url_of(request.param, request)


@pytest.fixture
def workers(url: str) -> Iterator[tuple[Limiter, Limiter]]:
    """Two limiters, each with its own connection to one store, as in two processes."""
    both = limiter_of(store=url), limiter_of(store=url)
    yield both
    for each in both:
        each.close()
