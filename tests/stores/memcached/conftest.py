"""A store on the server that the tests of Memcached share."""

from collections.abc import Iterator

import pytest
from memcached_handles import opened
from servers import Server

from ratelimit_mw.stores.memcached.store import MemcachedStore


@pytest.fixture
def store(memcached_server: Server) -> Iterator[MemcachedStore]:
    with opened(memcached_server) as found:
        yield found
