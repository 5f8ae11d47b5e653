"""``count_when`` and ``count_unless`` in every framework: what counts, and what the headers show."""

from __future__ import annotations

from typing import Any

import pytest
from outcome_scene import BY_SETTINGS, BY_VIEW, REST, Ask
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

ALL = {
    **{f"{name} by settings": (ask, False) for name, ask in BY_SETTINGS.items()},
    **{f"{name} by view": (ask, True) for name, ask in BY_VIEW.items()},
    "throttle": (REST, False),
}
FAILED: Any = {"count_when": {"status": [401, 500]}}
EXCEPT: Any = {"count_unless": {"status": "2xx"}}
MARKED: Any = {"count_when": {"marked": True}}
WHO = {"ip": "192.0.2.7", "user": "ann", "scope": "login"}
everywhere = pytest.mark.parametrize(("ask", "is_of_view"), ALL.values(), ids=list(ALL))
outcomes = pytest.mark.parametrize("options", [FAILED, EXCEPT, MARKED], ids=["when", "unless", "marked"])


def send(ask: Ask, is_of_view: bool, options: Any, path: str, method: str = "GET") -> tuple[int, str | None, int]:
    """Return the status of one request, its header, and what is left of nine requests a minute."""
    rule: Any = {"name": "login", "limits": "9/minute", **options}
    match = {"match": {"scope": "login"}} if ask is REST else {}
    limiter = Limiter([] if is_of_view else [Rule(**rule, **match)], SharedStore(), ManualClock(1_000_000.0))
    response = ask(limiter, rule if is_of_view else {}, path, method)
    left = limiter.decide(Plan(limiter.rules.rules), WHO, 0, consume=False).decisions[0].remaining
    return response.status_code, response.headers.get("x-ratelimit-remaining"), left


@everywhere
@outcomes
def test_the_status_or_the_mark_counts(ask: Ask, is_of_view: bool, options: Any) -> None:
    """The headers show what is left after the outcome, even for a HEAD request and a stream."""
    for status, how, method in [
        (200, "plain", "GET"),
        (401, "plain", "GET"),
        (200, "plain", "HEAD"),
        (401, "plain", "HEAD"),
        (401, "plain", "POST") if ask is not REST else (401, "stream", "GET"),
        (200, "stream", "GET"),
        (401, "stream", "GET"),
        (200, "mark", "GET"),
        (401, "mark", "GET"),
    ]:
        counts = how == "mark" or (options is not MARKED and status == 401)
        expected = (status, "8", 8) if counts else (status, "9", 9)
        assert send(ask, is_of_view, options, f"/{status}/{how}", method) == expected, (status, how, method)


@everywhere
@outcomes
def test_a_mark_in_the_middle_of_a_stream_counts(ask: Ask, is_of_view: bool, options: Any) -> None:
    """The response has started, so its headers do not show the mark."""
    assert send(ask, is_of_view, options, "/200/late")[2] == 8


@everywhere
@outcomes
def test_an_error_counts_as_500(ask: Ask, is_of_view: bool, options: Any) -> None:
    """A mark before the error counts, too. Without one, only marked requests are not counted."""
    assert send(ask, is_of_view, options, "/200/raise")[::2] == (500, 8)
    assert send(ask, is_of_view, options, "/200/fail")[::2] == (500, 9 if options is MARKED else 8)


@pytest.mark.parametrize("name", BY_SETTINGS)
def test_a_late_mark_is_reserved_until_the_end_of_the_stream(name: str) -> None:
    """With ``marked = true`` the cost is not returned before the view has had its chance to mark."""
    store = SharedStore()
    corrections: list[str] = []
    correct = store.correct

    def note(*arguments: Any) -> list[int]:
        corrections.extend(change.limit.rule for change in arguments[0])
        return correct(*arguments)

    store.correct = note  # type: ignore[method-assign]
    rule = Rule(name="login", limits="9/minute", **MARKED)
    limiter = Limiter([rule], store, ManualClock(1_000_000.0), Settings(fleet_size=1))
    for path in ("/200/late", "/200/stream"):
        BY_SETTINGS[name](limiter, {}, path, "GET")
    assert corrections.count("login") == 1
