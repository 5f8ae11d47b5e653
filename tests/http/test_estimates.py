"""A cost from a feature of the request while its store is unreachable."""

from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}


def test_without_the_store_an_estimate_is_held_at_the_part_of_a_process() -> None:
    """A cost that fits the limit is not rejected forever, a fixed one neither. Slots are counted as they are."""
    store = SharedStore()
    rules = [
        Rule(name="tokens", limits="1000/minute", cost="tokens"),
        Rule(name="fixed", limits="100/minute; 4 concurrent", cost=3),
    ]
    rate = Limiter(rules, store, ManualClock(1_000_000.0), Settings(fleet_size=4))
    store.down = True
    verdict = rate.hit({**WHO, "tokens": 900})
    assert [(d.allowed, d.limit, d.remaining) for d in verdict.decisions] == [
        (True, 250, 250),
        (True, 25, 25),
        (False, 1, 1),
    ]
    assert rate.hit({**WHO, "tokens": 900}, cost=30).decisions[0].local
