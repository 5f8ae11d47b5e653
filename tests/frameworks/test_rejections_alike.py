"""Bans, schedules and random waits have the same statuses and headers in all frameworks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shared_store import SharedStore
from sites import NOW, Build
from tables import each

from ratelimit_mw.stores import MemoryStore

END = datetime(2026, 1, 7, 18, tzinfo=UTC).timestamp()  # a Wednesday


@each("status", [429, 403])
def test_a_ban_has_its_status_and_its_end(place: Build, status: int) -> None:
    """The client is rejected once, which bans it. The wait of both rejections is the end of the ban."""
    ban: Any = {"after": 1, "within": "1m", "for": "1h", "status": status}
    served = place({"name": "login", "limits": "1/minute", "ban": ban}, 200, store=SharedStore())
    responses = [served.call() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 429, status]
    assert [response.headers.get("retry-after") for response in responses] == [None, "3600", "3600"]
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == ["0", "0", "0"]


@each("store", [MemoryStore, SharedStore])
def test_headers_show_the_limits_in_force(place: Build, store: Any) -> None:
    """A schedule changes them."""
    schedule = {"mon-fri 08:00-18:00": "1/minute"}
    rule = {"limits": "3/minute", "name": "login", "schedule": schedule, "algorithm": "fixed-window"}
    served = place(rule, 200, store=store())
    served.clock.advance(END - 60 - NOW)
    responses = [served.call(), served.call()]
    served.clock.advance(60)
    responses.append(served.call())
    assert [response.status_code for response in responses] == [200, 429, 200]
    for header, expected in {
        "ratelimit-policy": ['"login";q=1;w=60', '"login";q=1;w=60', '"login";q=3;w=60'],
        "x-ratelimit-limit": ["1", "1", "3"],
        "x-ratelimit-remaining": ["0", "0", "2"],
        "retry-after": [None, "60", None],
    }.items():
        assert [response.headers.get(header) for response in responses] == expected


def test_a_random_wait_is_the_same_in_the_headers_and_the_body(site: Build) -> None:
    """The client may read either of them."""
    served = site({"limits": "1/minute"}, headers=["ratelimit"], retry_jitter="1h")
    served.call()
    for rejected in [served.call() for _ in range(3)]:
        wait = rejected.headers["retry-after"]
        assert str(rejected.json()["retry-after"]) == wait
        assert rejected.headers["ratelimit"] == f'"default";r=0;t={wait}'
