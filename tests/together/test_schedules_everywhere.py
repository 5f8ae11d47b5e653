"""The limits of a range, and their headers, are the same in every framework, by settings and by decorators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from outcome_scene import BY_SETTINGS, BY_VIEW, Ask
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

END = datetime(2026, 1, 7, 18, tzinfo=UTC).timestamp()  # a Wednesday


SCHEDULE: Any = {"mon-fri 08:00-18:00": "1/minute"}
OPTIONS: dict[str, Any] = {"limits": "3/minute", "name": "login", "schedule": SCHEDULE, "algorithm": "fixed-window"}
PLACES = {
    **{f"{name} by settings": (ask, [Rule(**OPTIONS)], {}) for name, ask in BY_SETTINGS.items()},
    **{f"{name} by decorator": (ask, [], OPTIONS) for name, ask in BY_VIEW.items()},
}


@pytest.mark.parametrize(("ask", "rules", "marks"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("is_shared", [False, True], ids=["memory", "shared"])
def test_headers_show_the_limits_in_force(ask: Ask, rules: list[Rule], marks: dict[str, Any], is_shared: bool) -> None:
    clock, store = ManualClock(END - 60), SharedStore() if is_shared else MemoryStore()

    def get() -> Any:
        return ask(Limiter(rules, store, clock), marks, "/200/plain", "GET")

    inside = [get(), get()]
    clock.advance(60)
    outside = get()
    assert [response.status_code for response in (*inside, outside)] == [200, 429, 200]
    assert [response.headers["ratelimit-policy"] for response in (*inside, outside)] == [
        '"login";q=1;w=60',
        '"login";q=1;w=60',
        '"login";q=3;w=60',
    ]
    assert [response.headers["x-ratelimit-limit"] for response in (*inside, outside)] == ["1", "1", "3"]
    assert [response.headers["x-ratelimit-remaining"] for response in (*inside, outside)] == ["0", "0", "2"]
    assert inside[1].headers["retry-after"] == "60"
