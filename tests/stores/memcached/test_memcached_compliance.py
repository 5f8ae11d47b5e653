"""The Memcached store keeps the contract of every store, blocking and on an event loop."""

from itertools import pairwise
from typing import Any

import pytest
from memcached_handles import address, opened
from servers import Server, memcached_running
from vectors import CASES, Case, ThroughStore, replay

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.stores.memcached.tiers import tiers
from ratelimit_mw.testing import StoreCompliance, StoreSmoke
from ratelimit_mw.testing.store_suite import WAYS


class TestMemcachedStore(StoreCompliance):
    keeps_no_time = rounds_waits = ("tiered-window",)
    largest_log = 1_000
    patience = 60_000_000
    """Microseconds. No test waits for the end of the budget, so a busy machine has time."""

    @pytest.fixture(autouse=True)
    def _server(self, memcached_server: Server) -> None:
        self.address = address(memcached_server)

    def make_store(self) -> Store:
        return open_store(self.address, self.patience)

    def make_second(self, store: Store) -> Store:
        return open_store(self.address, self.patience)


@pytest.fixture(scope="module")
def second_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with memcached_running(tmp_path_factory.mktemp("second")) as server:
        yield server


class TestTwoServers(TestMemcachedStore, StoreSmoke):
    """The keys of one request are on different servers."""

    @pytest.fixture(autouse=True)
    def _server(self, memcached_server: Server, second_server: Server) -> None:
        self.address = address(memcached_server, second_server)


def is_kept(case: Case) -> bool:
    """Whether Memcached keeps the limit of a case: no log over 1,000, no tiered window whose clock goes back.

    The waits of a tiered window with several tiers are longer.
    """
    if case["file"] == "tiered-window":
        algorithm = build(case["algorithm"], Quota.parse(case["quota"]))
        return len(tiers(algorithm.span)) == 1 and all(
            step["now"] <= later["now"] for step, later in pairwise(case["steps"])
        )
    return "log" not in case["file"] or Quota.parse(case["quota"]).amount <= 1_000


@pytest.mark.parametrize("way", WAYS)
def test_the_vectors_hold_through_the_store(memcached_server: Server, way: str) -> None:
    """The store replays the cases that were worked by hand, blocking and on an event loop."""
    cases = [case for case in CASES if is_kept(case)]
    assert len(cases) > 0.9 * len(CASES)
    for i, case in enumerate(cases):
        with opened(memcached_server, query=f"?prefix={way}{i}:") as store:
            handle = WAYS[way](store)
            replay(case, ThroughStore(case, handle))
            handle.close()
