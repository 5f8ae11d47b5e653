"""Outcomes, true costs, slots and delays are settled at the end of each request, in every framework."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from limiter_ways import renewed
from shared_store import SharedStore
from sites import BY_ASGI, Build, Call, Reply, Site, act, only
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

IN_VIEWS: Any = {"view": ""}
QUEUE: Any = {"algorithm": {"name": "leaky-bucket", "mode": "queue"}}


async def check_named(call: Call) -> int:
    await call.check("named", **call.query)
    return 200


async def meet_and_fail(call: Call) -> int:
    await call.meet()
    return 401


def test_twenty_concurrent_failing_logins_allow_three(place: Build) -> None:
    """The rule counts only failures. Each request reserves its cost first, so a burst stays within the limit."""
    served = place({"name": "login", "limits": "3/minute", "count_when": {"status": 401}}, meet_and_fail)
    assert served.at_once(20) == [401] * 3 + [429] * 17


@each(
    ("cost", "status", "counted", "left"),
    [
        (0, 200, None, 10),
        (1, 200, None, 9),
        (25, 200, None, 0),
        (4, 500, None, 6),
        (4, 200, 200, 6),
        (4, 500, 500, 6),
        (4, 200, 401, 10),
        (4, 500, 401, 10),
    ],
)
def test_the_view_settles_the_true_cost(site: Build, cost: int, status: int, counted: int | None, left: int) -> None:
    """It replaces the reserved cost, even when the view then raises. An outcome that does not count costs nothing."""
    served = site(Rule(limits="10/minute", cost=3, count_when=counted and {"status": counted}), act)
    response = served.call(path=f"/?cost={cost}" + "&fail" * (status == 500))
    assert served.left() == [left]
    if (status, counted) == (200, None):  # it is settled after the headers are sent
        assert response.headers["x-ratelimit-remaining"] == "7"


@each(("counted", "left"), [(None, 4), (200, 4), (401, 10)])
def test_a_stream_settles_the_true_cost(site: Build, counted: int | None, left: int) -> None:
    """A view may settle its cost before, in the middle and at the very end of a stream. The last cost counts."""

    async def view(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            try:
                yield b"some "
                call.verdict["rule-1"].settle(8)
                yield b"words"
            finally:
                call.verdict["rule-1"].settle(6)

        call.verdict["rule-1"].settle(2)
        return Reply(body=parts())

    served = site(Rule(limits="10/minute", count_when=counted and {"status": counted}), view)
    assert served.call().text == "some words"
    assert served.left() == [left]


def test_a_failing_stream_is_settled(site: Build) -> None:
    """The error reaches the server. Django does not close the stream under ASGI, so its slot waits for the garbage."""

    async def view(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            yield b"some "
            call.verdict["rule-1"].settle(3)
            raise ZeroDivisionError

        return Reply(body=parts())

    served = site([Rule(limits="10/minute"), Rule(name="slots", limits="1 concurrent")], view)
    error = served.call().extensions["error"]
    assert [type(each) for each in getattr(error, "exceptions", [error])] == [ZeroDivisionError]  # a group in Starlette
    gc.collect()
    assert served.left() == [7, 1]


def test_a_view_settles_each_rule_by_its_name(site: Build) -> None:
    """In the view, in the stream and after the response."""
    verdicts = []

    async def view(call: Call) -> Reply:
        verdicts.append(verdict := call.verdict)
        verdict["tokens"].settle(30)

        async def parts() -> AsyncIterator[bytes]:
            verdict["tokens"].settle(40)
            yield b"words"

        return Reply(body=parts() if call.query["where"] == "stream" else "done")

    rules = [Rule(name="requests", limits="10/minute"), Rule(name="tokens", limits="1000/minute", cost=100)]
    served = site(rules, view)
    left = []
    for where in ("view", "stream", "later"):
        assert served.call(path=f"/?where={where}").text
        if where == "later":
            verdicts[-1]["tokens"].settle(5)
            verdicts[-1]["requests"].refund()
        left.append(served.left())
    assert left == [[9, 970], [8, 930], [8, 925]]


def test_the_end_of_the_view_releases_its_slot(place: Build) -> None:
    """A complete response releases its slot at once. Errors and rejections of the application do the same."""
    served = place({"name": "login", "limits": "1 concurrent"}, act)
    asked = ["status=200", "fail", "status=403", ""]
    assert [served.call(path=f"/?{query}").status_code for query in asked] == [200, 500, 403, 200]


def test_a_slot_is_held_while_the_view_runs(place: Build) -> None:
    """With one slot, a request inside another one is rejected."""

    async def view(call: Call) -> str:
        return str((await call.site.acall()).status_code)

    served = place({"name": "login", "limits": "1 concurrent"}, view)
    assert [served.call().text for _ in range(2)] == ["429", "429"]


@each("method", ["GET", "HEAD"])
def test_a_slot_is_held_while_the_response_streams(site: Build, method: str) -> None:
    """It is returned when the server closes the response."""
    left = []

    async def view(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            try:
                yield b"a"
                yield b"b"
            finally:
                left.extend(call.site.left())

        return Reply(body=parts())

    served = site(Rule(limits="1 concurrent"), view)
    assert served.call(method).status_code == 200
    assert (left or [0], served.left()) == ([0], [1])
    assert served.call(seen=lambda part: left.extend(served.left() if part else ())).text == "ab"
    assert (set(left), served.left()) == ({0}, [1])


@each("limits", ["10/s burst 3", lambda _: "10/s burst 3"])
def test_a_queue_delays_requests(place: Build, delays: list[float], limits: Any) -> None:
    """A leaky-bucket queue delays a request until the earlier ones are released. A full queue rejects."""
    delays.clear()
    served = place({"name": "login", "limits": limits, **QUEUE}, 200)
    assert served.statuses(4) == [200, 200, 200, 429]
    assert delays == [0.1, 0.2]


@each(("user", "expected", "left"), [("eve", [403, 403], 7), ("bob", [200, 429], 9)])
def test_the_status_of_a_rejection_is_the_outcome(site: Build, user: str, expected: list[int], left: int) -> None:
    """A 403 of a deny list in a check counts as a 403, and not as a 429."""
    settings = {
        "rules": [
            {"name": "forbidden", "limits": "9/minute", "count_when": {"status": [403]}},
            {"name": "named", "limits": "1/minute", "key": ["user"], "match": {"view": ""}},
        ],
        "lists": {"deny": {"user": ["eve"]}},
    }

    served = site(settings, check_named)
    assert served.statuses(2, params={"user": user}) == expected
    assert served.left(user="ann")[0] == left


def test_a_failing_rejection_counts_as_an_error(site: Build) -> None:
    """Where your own function raises, the client receives a 500, which is the outcome."""

    def fail(request: Any, verdict: Any) -> Any:
        raise OSError("broken")

    rules = [Rule(limits="9/minute", count_when={"status": 500}), Rule(name="named", limits="1/minute", match=IN_VIEWS)]
    served = site(rules, check_named, rejection=fail)
    assert served.statuses(2) == [200, 500]
    assert served.left()[0] == 8


@only(BY_ASGI - {"async django"})  # its handler lets a request continue when its own task is cancelled
def test_a_request_cancelled_in_the_queue_releases_its_slot(site: Build) -> None:
    """A client that disconnects while its request waits in the queue holds no slot."""
    served = site([Rule(name="slots", limits="2 concurrent"), Rule(name="queue", limits="1/hour burst 2", **QUEUE)])

    async def scenario() -> None:
        assert (await served.acall()).status_code == 200
        waiting = asyncio.create_task(served.acall())
        while served.left() != [1, 0] and not waiting.done():
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)  # it waits in the queue
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    served.loop.run(scenario())
    assert served.left()[0] == 2
    assert renewed(served.limiter) == 0


# -- what counts, and what the headers show --------------------------------------------------------------------

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
