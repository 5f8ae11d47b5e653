"""Fixtures and profiles that all tests share.

Hypothesis runs the same examples in every run: at most 30 of a test, with `--hypothesis-profile=quick` 10, as
`make test-fast` does, and with `full` all of them, as `make test-all` does.
"""

import asyncio
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import servers
from hypothesis import HealthCheck, settings
from hypothesis_profiles import MOST
from limiter_ways import Awaited, Blocking
from redis_handles import client
from servers import PostgresServer, Server, memcached_running, postgres_running, redis_running

from ratelimit_mw import clock
from ratelimit_mw.limiter.adaptive import Aimd
from ratelimit_mw.rules.marks import current_admission

WALL_AT_ZERO = clock.WALL_AT_ZERO
MINUTE = 60_000_000_000  # in nanoseconds

settings.register_profile("full", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
for profile in ("quick", "usual"):
    settings.register_profile(profile, settings.get_profile("full"), max_examples=MOST[profile])
settings.load_profile("usual")

SERVERS = {"redis_server", "own_server", "server", "memcached_server", "postgres_server"}
STORES = {"redis", "memcached", "postgres", "cluster"}

FILES = Path("/proc/self/fd")
"""The open files and sockets of this process, on Linux."""
_open = pytest.StashKey[int]()

gc.disable()  # thousands of tests are collected and kept, so there is nothing to collect until they are there


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with a server of the session, or a store that has one: `make test-fast` leaves them out."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        stores = STORES.intersection(each for each in parameters if isinstance(each, str))
        if stores or SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep the tests out of all later garbage collections."""
    gc.enable()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin each test at the start of a minute of this process, so that no minute ends between two requests."""
    item.stash[_open] = files_open()
    servers.may_start = any(item.iter_markers("slow")) or any(item.iter_markers("thorough"))
    real = time.monotonic_ns() + WALL_AT_ZERO
    clock.WALL_AT_ZERO = WALL_AT_ZERO - real % MINUTE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test that leaves a request or an open socket behind, not a later test that meets it."""
    yield
    left = current_admission.get()
    current_admission.set(None)
    assert left is None, f"{item.name} has run a request in the context of all tests"
    if files_open() > item.stash.get(_open, 0):
        has_failed = hasattr(sys, "last_value")
        found = unclosed()
        assert has_failed or not found, f"{item.name} leaves open: {', '.join(found)}"


def files_open() -> int:
    return len([*FILES.glob("*")])


def unclosed() -> list[str]:
    """Return what no code can close now. The traceback of a failed test keeps its sockets until here."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    return [str(each.message) for each in found]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis for all tests that do not hurt it; they use keys of their own."""
    with redis_running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis whose statistics are those of one test at a time."""
    with redis_running(tmp_path_factory.mktemp("own")) as server:
        yield server


@pytest.fixture
def server(own_server: Server) -> Iterator[redis.Redis]:
    """A client of ``own_server``, which is empty and has counted nothing."""
    with client(own_server) as found:
        found.flushall()
        found.config_resetstat()
        yield found


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Memcached for all tests that do not hurt it; they use keys of their own."""
    with memcached_running(tmp_path_factory.mktemp("memcached")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests that do not hurt it; they use keys of their own."""
    with postgres_running() as server:
        yield server


@pytest.fixture(params=["blocking", "awaited"])
def way(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    """Returns the methods of a limiter, or of its clients: blocking, or awaited on one event loop."""
    with asyncio.Runner() as loop:
        yield Blocking if request.param == "blocking" else lambda owner: Awaited(owner, loop.run)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """The times in microseconds and the statuses of all responses that adaptive limits are given."""
    found: list[tuple[int, int | None]] = []
    note_response = Aimd.note_response

    def noting(limit: Aimd, took: int, status: int | None = 200) -> None:
        found.append((took, status))
        note_response(limit, took, status)

    monkeypatch.setattr(Aimd, "note_response", noting)
    return found


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No thread can start, as when the process has reached its limit of threads. ``undo`` ends that."""
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    return monkeypatch
