"""Fixtures and profiles that all tests share.

Hypothesis runs the same examples in every run: at most 30 of a test, with `--hypothesis-profile=quick` 10, as
`make test-fast` does, and with `full` all of them, as `make test-all` does.
"""

import gc
import math
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis_profiles import MOST
from redis_handles import client
from servers import PostgresServer, Server, memcached_running, postgres_running, redis_running

from ratelimit_mw import clock
from ratelimit_mw.limiter.overrides import RecordFollower
from ratelimit_mw.rules.guard import current

WALL_AT_ZERO = clock.WALL_AT_ZERO
MINUTE = 60_000_000_000  # in nanoseconds

settings.register_profile("full", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
for profile in ("quick", "usual"):
    settings.register_profile(profile, settings.get_profile("full"), max_examples=MOST[profile])
settings.load_profile("usual")

SERVERS = {"redis_server", "own_server", "server", "memcached_server", "postgres_server"}

gc.disable()  # thousands of tests are collected and kept, so there is nothing to collect until they are there


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server of the session, which `make test-fast` leaves out."""
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep the tests out of all later garbage collections."""
    gc.enable()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Begin each test at the start of a minute of this process, so that no minute ends between two requests."""
    real = time.monotonic_ns() + WALL_AT_ZERO
    clock.WALL_AT_ZERO = WALL_AT_ZERO - real % MINUTE


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail the test that leaves its request behind, not a later test that expects none."""
    left = current.get()
    current.set(None)
    assert left is None, f"{item.name} has run a request in the context of all tests"


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


@pytest.fixture
def no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of a limiter reads the overrides in the store, so a test can count the commands of its requests."""
    monkeypatch.setattr(RecordFollower, "due_at", math.inf)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No thread can start, as when the process has reached its limit of threads. ``undo`` ends that."""
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    return monkeypatch
