"""Servers and stores that the tests of stores share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from servers import STEADY, Server, cluster_running
from store_urls import PATIENT, URLS

from ratelimit_mw.stores import Store, open_store


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A cluster of three primaries, then their replicas, for tests that leave each primary one. Slots may move."""
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY) as found:
        yield found


@pytest.fixture(params=URLS)
def each_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each store that is built in, and of a cluster."""
    return URLS[request.param](request.getfixturevalue, tmp_path)


@pytest.fixture
def each_store(each_url: str, caplog: pytest.LogCaptureFixture) -> Iterator[Store]:
    """The store. If a call fails, so does the test: the same decisions without the store would hide that."""
    with closing(open_store(each_url, PATIENT)) as opened:
        yield opened
    assert [record.getMessage() for record in caplog.get_records("call")] == []
