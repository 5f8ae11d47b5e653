"""What all tests share: Hypothesis runs the same examples every time, and real servers are started once."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from servers import Server, memcached_running, redis_running

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis for all tests that do not hurt it; they use keys of their own."""
    with redis_running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Memcached for all tests that do not hurt it; they use keys of their own."""
    with memcached_running(tmp_path_factory.mktemp("memcached")) as server:
        yield server
