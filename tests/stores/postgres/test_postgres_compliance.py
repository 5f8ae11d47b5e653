"""The PostgreSQL store keeps the contract of every store, blocking and on an event loop."""

import pytest
from postgres_handles import PATIENT, address
from servers import PostgresServer
from vectors import CASES, ThroughStore, replay

from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import StoreCompliance
from ratelimit_mw.testing.store_suite import WAYS


class TestPostgresStore(StoreCompliance):
    largest_log = 5_000

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.address = address(postgres_server)

    def make_store(self) -> Store:
        return open_store(self.address, PATIENT)

    def make_second(self, store: Store) -> Store:
        return open_store(self.address, PATIENT)


@pytest.mark.parametrize("way", WAYS)
def test_the_vectors_hold_through_the_store(postgres_server: PostgresServer, way: str) -> None:
    """The store replays the cases that were worked by hand, blocking and on an event loop."""
    handle = WAYS[way](open_store(address(postgres_server), PATIENT))
    for case in CASES:
        path = ThroughStore(case, handle)
        handle.forget([path.key])
        replay(case, path)
    handle.close()
