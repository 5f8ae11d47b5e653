"""Flask requests and streams settle outcomes, costs, slots and delays at their end."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import flask
import pytest
from calls import at_once
from flask import g, stream_with_context
from flask_calls import app_of, ask, one_rule, statuses

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.flask import RateLimiter, hooks, limit
from ratelimit_mw.testing import ManualClock

FAILURES = {"count_when": {"status": [401, 500]}}


def test_twenty_concurrent_failing_logins_allow_three() -> None:
    """The rule counts only failures. Each request reserves its cost first, so a burst stays within the limit."""
    inside = threading.Semaphore(0)

    @limit("3/minute", count_when={"status": 401})
    def login() -> Any:
        inside.acquire()
        return "no", 401

    app = app_of(views={"/": login})
    assert at_once(20, lambda: statuses(app, times=1), inside) == [401] * 3 + [429] * 17


def test_only_the_named_outcomes_count() -> None:
    """A success is refunded, a failure keeps its cost, and an exception counts as 500."""

    def view(status: int) -> Any:
        if status == 500:
            raise ZeroDivisionError
        return "", status

    app = app_of(one_rule("2/minute", **FAILURES), {"/<int:status>": view})
    assert [ask(app, f"/{status}").status_code for status in (200, 404, 200, 200, 401, 500, 200)] == [
        200,
        404,
        200,
        200,
        401,
        500,
        429,
    ]


def test_the_sent_status_decides() -> None:
    """The outcome is the status after all functions that change or replace the response."""
    app, limiter = flask.Flask("app"), one_rule("2/minute", **FAILURES)
    app.after_request(lambda response: flask.Response("no", 401))
    app.add_url_rule("/", view_func=lambda: "fine")
    RateLimiter(app, limiter=limiter)
    assert statuses(app, times=2) == [401, 401]
    assert not limiter.peek({"ip": "192.0.2.7"})


@pytest.mark.parametrize("is_before", [True, False])
def test_functions_after_the_request_may_set_the_true_cost(is_before: bool) -> None:
    """The hook runs after all of them, before or after which the application was limited."""
    app = flask.Flask("app")
    limiter = one_rule("1000/minute", cost=200, cost_from={"header": "x-used", "remove": True})

    def add_cost(response: flask.Response) -> flask.Response:
        response.headers["X-Used"] = "150"
        return response

    if is_before:
        RateLimiter(app, limiter=limiter)
    app.after_request(add_cost)
    app.add_url_rule("/", view_func=lambda: "fine")
    if not is_before:
        RateLimiter(app, limiter=limiter)
    assert "x-used" not in ask(app).headers
    assert limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 850


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_that_reaches_the_server_is_settled(error: type[BaseException]) -> None:
    """An unhandled error counts as 500. After a shutdown the outcome is unknown, so the cost is kept."""

    def view() -> str:
        raise error

    limiter = one_rule("1/minute", count_when={"status": 401})
    app = app_of(limiter, {"/": view})
    app.testing = True
    with pytest.raises(error):
        ask(app)
    assert limiter.peek({"ip": "192.0.2.7"}).allowed is (error is ZeroDivisionError)


def test_the_view_settles_the_true_cost() -> None:
    """g.ratelimit.settle corrects the consumed cost at the end of the request."""

    def view(cost: int) -> str:
        g.ratelimit.settle(cost)
        return "done"

    app = app_of(one_rule("10/minute", cost=3), {"/<int:cost>": view})
    assert [ask(app, f"/{cost}").headers["x-ratelimit-remaining"] for cost in (0, 5, 1)] == ["7", "7", "2"]


def test_a_stream_settles_the_true_cost() -> None:
    """A streaming view may settle its cost at its very end. The cost applies when the response is closed."""

    def view() -> flask.Response:
        def chunks() -> Iterator[str]:
            yield "some "
            g.ratelimit.settle(6)
            yield "words"

        return flask.Response(stream_with_context(chunks()))

    limiter = one_rule("10/minute")
    with ask(app_of(limiter, {"/": view})) as response:
        assert response.text == "some words"
    assert limiter.peek({"ip": "192.0.2.7"}).decisions[0].remaining == 3  # 6 consumed, 1 for this request


def test_a_view_settles_each_rule_by_its_name() -> None:
    """In the view, in the stream and after the response; without a name it is an error."""
    rules = [Rule(name="requests", limits="10/minute"), Rule(name="tokens", limits="1000/minute", cost=100)]
    limiter = Limiter(rules, clock=ManualClock(999_960.0))
    verdicts = []

    def view(where: str) -> Any:
        verdict = g.ratelimit
        verdicts.append(verdict)
        with pytest.raises(ConfigError, match="2 rules apply: 'requests', 'tokens'"):
            verdict.settle(0)
        verdict["tokens"].settle(30)

        def chunks() -> Iterator[str]:
            verdict["tokens"].settle(40)
            yield "words"

        return flask.Response(stream_with_context(chunks())) if where == "stream" else "done"

    app = app_of(limiter, {"/<where>": view})
    remaining = []
    for where in ("view", "stream", "later"):
        with ask(app, f"/{where}") as response:
            assert response.text
        if where == "later":
            verdicts[-1]["tokens"].settle(5)
            verdicts[-1]["requests"].refund()
        remaining.append([each.remaining for each in limiter.peek({"ip": "192.0.2.7"}, 0).decisions])
    assert remaining == [[9, 970], [8, 930], [8, 925]]


def held_response(app: flask.Flask, **request: Any) -> Any:
    """Return the unread response of a request that holds a slot."""
    response = ask(app, **request)
    assert response.status_code == 200
    return response


def streaming() -> flask.Response:
    return flask.Response(iter(["a", "b"]))


def sending() -> flask.Response:
    return flask.send_file(io.BytesIO(b"ab"), "text/plain")


@pytest.mark.parametrize("view", [streaming, sending])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_slot_is_held_until_the_response_is_closed(view: Any, method: str) -> None:
    """A stream or a file holds its slot until the server closes the response."""
    app = app_of(one_rule("1 concurrent"), {"/": view})
    response = held_response(app, method=method)
    assert ask(app).status_code == 429
    response.close()
    held_response(app).close()


def test_the_end_of_the_view_releases_its_slot() -> None:
    """A complete response releases its slot at once. Errors and rejections of the application do the same."""

    def view(status: int) -> Any:
        if status == 500:
            raise ZeroDivisionError
        return "", status

    app = app_of(one_rule("1 concurrent"), {"/<int:status>": view})
    assert [ask(app, f"/{status}").status_code for status in (200, 500, 403, 200)] == [200, 500, 403, 200]


def test_a_slot_is_held_while_the_view_runs() -> None:
    """With one slot, the second of two concurrent requests is rejected."""
    app = app_of(one_rule("1 concurrent"), {"/": lambda: str(ask(app).status_code)})
    assert ask(app).text == "429"
    assert ask(app).text == "429"


def test_a_queue_delays_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaky-bucket queue delays a request until the earlier ones are released. A full queue rejects."""
    slept: list[float] = []
    monkeypatch.setattr(hooks.time, "sleep", slept.append)
    app = app_of(one_rule("10/s burst 3", algorithm={"name": "leaky-bucket", "mode": "queue"}))
    assert statuses(app, times=4) == [200, 200, 200, 429]
    assert slept == [0.1, 0.2]
