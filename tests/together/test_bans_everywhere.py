"""A banned client receives the same status and headers in every framework."""

from __future__ import annotations

from typing import Any

import pytest
from outcome_scene import BY_SETTINGS, REST, Ask
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock

PLACES: dict[str, Ask] = {**BY_SETTINGS, "throttle": REST}


@pytest.mark.parametrize("status", [429, 403])
@pytest.mark.parametrize("ask", PLACES.values(), ids=PLACES)
def test_a_ban_has_its_status_and_its_end(ask: Ask, status: int) -> None:
    """The client is rejected once, which bans it. The wait of both rejections is the end of the ban."""
    ban: Any = {"after": 1, "within": "1m", "for": "1h", "status": status}
    match: Any = {"scope": "login"} if ask is REST else {}
    rule = Rule(name="login", limits="1/minute", ban=ban, match=match)
    limiter = Limiter([rule], SharedStore(), ManualClock(1_000_000.0))
    responses = [ask(limiter, {}, "/200/plain", "GET") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 429, status]
    assert [response.headers.get("retry-after") for response in responses] == [None, "3600", "3600"]
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == ["0", "0", "0"]
