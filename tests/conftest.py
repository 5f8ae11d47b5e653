"""What all tests share: Hypothesis runs the same examples every time, and real servers are started once."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from servers import Server, redis_running

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis for all tests that do not hurt it; they use keys of their own."""
    with redis_running(tmp_path_factory.mktemp("redis")) as server:
        yield server
