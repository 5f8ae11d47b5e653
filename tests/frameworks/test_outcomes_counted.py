"""``count_when`` and ``count_unless``, wherever the rule stands: what counts, and what the headers show."""

from __future__ import annotations

from typing import Any

from shared_store import SharedStore
from sites import Build, Site, act
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

FAILED: Any = {"count_when": {"status": [401, 500]}}
EXCEPT: Any = {"count_unless": {"status": "2xx"}}
MARKED: Any = {"count_when": {"marked": True}}
outcomes = each("options", [FAILED, EXCEPT, MARKED])


def serve(place: Build, options: Any) -> Site:
    return place({"name": "login", "limits": "9/minute", **options}, act, store=SharedStore())  # type: ignore[no-any-return]


def send(served: Site, query: str, method: str = "GET") -> tuple[int, str | None, int]:
    """Return the status of one request, its header, and what is left of nine requests a minute."""
    served.clock.advance(120)  # two windows: nothing of an earlier request is left
    response = served.call(method, f"/?{query}")
    return response.status_code, response.headers.get("x-ratelimit-remaining"), left_of(served)


def left_of(served: Site) -> int:
    return served.left(user="ann", scope="login")[0]


@outcomes
def test_the_status_or_the_mark_counts(place: Build, options: Any) -> None:
    """The headers show what is left after the outcome, even for a HEAD request and a stream."""
    served = serve(place, options)
    for query in ("", "status=401", "stream", "stream&status=401", "mark", "mark&status=401"):
        for method in ("GET", "HEAD", "POST") if "stream" not in query else ("GET",):
            counts = "mark" in query or (options is not MARKED and "401" in query)
            expected = (401 if "401" in query else 200, *(("8", 8) if counts else ("9", 9)))
            assert send(served, query, method) == expected, (query, method)


@outcomes
def test_a_mark_in_the_middle_of_a_stream_counts(place: Build, options: Any) -> None:
    """The response has started, so its headers do not show the mark."""
    assert send(serve(place, options), "late")[2] == 8


@outcomes
def test_an_error_counts_as_500(place: Build, options: Any) -> None:
    """A mark before the error counts, too. Without one, only marked requests are not counted."""
    served = serve(place, options)
    assert send(served, "mark&fail")[::2] == (500, 8)
    assert send(served, "fail")[::2] == (500, 9 if options is MARKED else 8)


def test_a_late_mark_is_reserved_until_the_end_of_the_stream(site: Build) -> None:
    """With ``marked = true`` the cost is not returned before the view has had its chance to mark."""
    store = SharedStore()
    corrections: list[str] = []
    correct = store.correct

    def note(*arguments: Any) -> list[int]:
        corrections.extend(change.limit.rule for change in arguments[0])
        return correct(*arguments)

    store.correct = note  # type: ignore[method-assign]
    rule = Rule(name="login", limits="9/minute", **MARKED)
    served = site(Limiter([rule], store, settings=Settings(fleet_size=1)), act)
    assert [served.call(path=f"/?{query}").status_code for query in ("late", "stream")] == [200, 200]
    assert corrections.count("login") == 1
