"""The Memcached store keeps the contract of every store, blocking and awaitable: the answers of the pure functions."""

import pytest
from servers import Server

from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import StoreCompliance

PATIENT = 5_000_000


class TestMemcachedStore(StoreCompliance):
    keeps_no_time = ("tiered-window",)

    @pytest.fixture(autouse=True)
    def _server(self, memcached_server: Server) -> None:
        self.address = f"memcached://127.0.0.1:{memcached_server.port}"

    def make_store(self) -> Store:
        return open_store(self.address, PATIENT)

    def make_second(self, store: Store) -> Store:
        return open_store(self.address, PATIENT)
