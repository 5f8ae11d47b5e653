"""Flask requests and streams settle outcomes, costs, slots and delays at their end."""

from __future__ import annotations

import io
from typing import Any

import flask
import pytest
from flask_calls import app_of, ask, one_rule, statuses
from tables import each

from ratelimit_mw.flask import RateLimiter

FAILURES = {"count_when": {"status": [401, 500]}}


def test_the_sent_status_decides() -> None:
    """The outcome is the status after all functions that change or replace the response."""
    app, limiter = flask.Flask("app"), one_rule("2/minute", **FAILURES)
    app.after_request(lambda response: flask.Response("no", 401))
    app.add_url_rule("/", view_func=lambda: "fine")
    RateLimiter(app, limiter=limiter)
    assert statuses(app, times=2) == [401, 401]
    assert not limiter.peek({"ip": "192.0.2.7"})


@each("is_before", [True, False])
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


@each("error", [ZeroDivisionError, SystemExit])
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


def held_response(app: flask.Flask, **request: Any) -> Any:
    """Return the unread response of a request that holds a slot."""
    response = ask(app, **request)
    assert response.status_code == 200
    return response


def sending() -> flask.Response:
    return flask.send_file(io.BytesIO(b"ab"), "text/plain")


def test_a_slot_is_held_until_a_file_is_closed() -> None:
    """A file that Flask sends holds its slot until the server closes the response. A HEAD has nothing to read."""
    app = app_of(one_rule("1 concurrent"), {"/": sending})
    held_response(app, method="HEAD")
    response = held_response(app)
    assert ask(app).status_code == 429
    response.close()
    held_response(app).close()


def test_redirects_and_errors_of_the_framework_hold_no_slot() -> None:
    """Werkzeug streams them, and a client of tests does not close them."""
    app = app_of(one_rule("1 concurrent"), {"/folder/": lambda: "hello"})
    unread = [ask(app, path) for path in ("/folder", "/nowhere", "/folder", "/nowhere")]
    assert [response.status_code for response in unread] == [308, 404, 308, 404]
