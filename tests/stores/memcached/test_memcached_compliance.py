"""The Memcached store keeps the contract of every store, blocking and on an event loop."""

from itertools import pairwise
from typing import Any

import pytest
from memcached_handles import PATIENT, address, opened
from servers import Server, memcached_running
from vectors import CASES, Case, fields, replay

from ratelimit_mw import Quota
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Hit
from ratelimit_mw.receipt import Charge, Correction
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import StoreCompliance, StoreSmoke
from ratelimit_mw.testing.store_handles import StoreHandle
from ratelimit_mw.testing.store_suite import WAYS


class TestMemcachedStore(StoreCompliance):
    keeps_no_time = ("tiered-window",)
    largest_log = 1_000

    @pytest.fixture(autouse=True)
    def _server(self, memcached_server: Server) -> None:
        self.address = address(memcached_server)

    def make_store(self) -> Store:
        return open_store(self.address, PATIENT)

    def make_second(self, store: Store) -> Store:
        return open_store(self.address, PATIENT)


@pytest.fixture(scope="module")
def second_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with memcached_running(tmp_path_factory.mktemp("second")) as server:
        yield server


class TestTwoServers(TestMemcachedStore, StoreSmoke):
    """The keys of one request are on different servers."""

    @pytest.fixture(autouse=True)
    def _server(self, memcached_server: Server, second_server: Server) -> None:
        self.address = address(memcached_server, second_server)


class ThroughStore:
    """Replay vectors on one limit of a store."""

    def __init__(self, case: Case, handle: StoreHandle) -> None:
        self.limit = Limit("vector", 0, Quota.parse(case["quota"]), case["algorithm"])
        self.key = self.limit.prefix + "ip=192.0.2.7"
        self.handle = handle
        self.consumed: dict[int, Charge] = {}

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]:
        (decision,) = self.handle.apply([Hit(self.limit, self.key, cost)], now)
        self.consumed[step] = Charge(decision.at_us, cost, decision.delay_us)
        return fields(decision)

    def refund(self, step: int, now: int, cost: int | None) -> None:
        consumed = self.consumed[step]
        back = consumed.cost if cost is None else cost
        self.handle.correct([Correction(self.limit, self.key, back, consumed)], now)
        self.consumed[step] = consumed._replace(cost=consumed.cost - back)

    def charge(self, step: int, now: int, cost: int) -> None:
        self.handle.correct([Correction(self.limit, self.key, cost, None)], now)


def is_kept(case: Case) -> bool:
    """Whether Memcached keeps the limit of a case: no log over 1,000, no tiered window whose clock goes back."""
    if case["file"] == "tiered-window":
        return all(step["now"] <= later["now"] for step, later in pairwise(case["steps"]))
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
