"""A proxy before the server that the tests of Redis share."""

from collections.abc import Iterator

import pytest
from redis_proxy import Proxy, proxied
from servers import Server


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with proxied(redis_server.port) as found:
        yield found
