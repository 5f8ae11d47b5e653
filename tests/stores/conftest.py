"""Servers and stores that the tests of stores share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import memcached_handles
import pytest
import redis_handles
from servers import HOST, STEADY, Server, cluster_running

from ratelimit_mw.stores import Store, open_store

PATIENT = 10_000_000
URLS: dict[str, Callable[[Callable[[str], Any], Path], str]] = {
    "memory": lambda server, folder: "memory://",
    "lmdb": lambda server, folder: f"lmdb://{folder}/counts?size=16MiB",
    "redis": lambda server, folder: redis_handles.address(server("redis_server")),
    "cluster": lambda server, folder: f"redis+cluster://{HOST}:{server('nodes')[0].port}",
    "memcached": lambda server, folder: memcached_handles.address(server("memcached_server")),
    "postgres": lambda server, folder: f"postgresql://postgres@{HOST}:{server('postgres_server').port}/postgres",
}


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A cluster of three primaries, then their replicas, for tests that leave each primary one. Slots may move."""
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY) as found:
        yield found


@pytest.fixture(params=URLS)
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store that is built in, and a cluster."""
    with closing(open_store(URLS[request.param](request.getfixturevalue, tmp_path), PATIENT)) as opened:
        yield opened
