"""The cluster that the tests of a module share."""

from collections.abc import Iterator

import pytest
from servers import STEADY, Server, cluster_running


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Three primaries, then their replicas."""
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY) as found:
        yield found
