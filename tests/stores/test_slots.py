"""The slots of concurrent requests, on every store."""

from uuid import uuid4

import pytest

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Charge, Correction
from ratelimit_mw.stores import Store

pytestmark = pytest.mark.slow


def test_a_return_of_more_slots_than_a_limit_has_returns_none(each_store: Store) -> None:
    """No hit has taken them. A client may have chosen the cost, which must not keep a store busy."""
    limiter = Limiter([Rule(name=uuid4().hex, limits="20 concurrent")], each_store)
    (decision,) = limiter.hit({"ip": "192.0.2.7"}).decisions
    limit, key, _ = decision.hit
    each_store.correct([Correction(limit, key, 1 << 53, Charge(1, 1 << 53))])
    assert limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 19
