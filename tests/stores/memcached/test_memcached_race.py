"""Four processes race for the same keys: exactly the limit is allowed."""

import threading
from typing import Any

import pytest
from memcached_handles import NOW, PATIENT, address, hit, opened
from servers import Server, wait_for
from store_races import FORK, raced

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing.store_suite import limit_of

pytestmark = pytest.mark.slow

SLOTS = Rule(name="slots", limits="20 concurrent")
CLIENT = {"ip": "192.0.2.7"}
RACED: list[Any] = [
    "sliding-window-counter",
    *(pytest.param(spec, marks=pytest.mark.thorough) for spec in ("sliding-window-log", "tiered-window", "gcra")),
]


@pytest.mark.parametrize("spec", RACED)
def test_four_processes_pass_exactly_the_limit(memcached_server: Server, spec: Any) -> None:
    """No more, and no fewer: later requests take what lost races refund."""
    limit = limit_of("300/day", spec)
    assert raced(address(memcached_server), [limit]) == 300
    with opened(memcached_server) as store:
        assert store.apply([hit(limit, cost=0)], NOW)[0].remaining == 0


def hold_slots(place: str, results: Any) -> None:
    """Take and return slots in four threads. Then wait until this process has returned all of them."""
    limiter = Limiter([SLOTS], store=place)
    store: Any = limiter.store

    def work() -> None:
        for _ in range(15):
            limiter.hold(verdict := limiter.hit(CLIENT))
            limiter.conclude(verdict, 200)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: not (len(store._unmade) or len(limiter.slots.unreturned)), "the slots to be returned")
    results.put(True)
    limiter.close()


def test_racing_processes_return_all_slots(memcached_server: Server) -> None:
    """Of 20 slots that four processes of four threads race for, 20 are free at the end."""
    results: Any = FORK.Queue()
    place = address(memcached_server)
    workers = [FORK.Process(target=hold_slots, args=(place, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert all(results.get(timeout=200) for _ in workers)
    for worker in workers:
        worker.join()
    limiter = Limiter([SLOTS], store=place, settings=Settings(store_timeout=PATIENT / 1e6))
    assert limiter.peek(CLIENT, cost=0).decisions[0].remaining == 20
    limiter.close()


def test_racing_requests_consume_all_of_their_limits_or_none(memcached_server: Server) -> None:
    """Each key counts exactly the allowed requests: lost races leave nothing behind."""
    limits = [limit_of("100/day", "tiered-window"), limit_of("150/day"), limit_of("1000/day", "sliding-window-log")]
    passed = raced(address(memcached_server), limits, 200)
    with opened(memcached_server) as store:
        left = [store.apply([hit(limit, cost=0)], NOW)[0].remaining for limit in limits]
    assert passed == 100
    assert left == [0, 50, 900]
