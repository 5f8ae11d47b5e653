"""Flask requests and streams settle outcomes, costs, slots and delays at their end."""

from __future__ import annotations

import io

import flask
from flask_calls import app_of, ask, one_rule, statuses
from tables import each

from ratelimit_mw.flask import RateLimiter

FAILURES = {"count_when": {"status": [401, 500]}}


def test_the_sent_status_decides() -> None:
    """The outcome is the status after all functions that change or replace the response."""
    limiter = one_rule("2/minute", **FAILURES)
    app = app_of(limiter)
    app.after_request(lambda response: flask.Response("no", 401))
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

    app.add_url_rule("/", view_func=lambda: "fine")
    steps = [lambda: RateLimiter(app, limiter=limiter), lambda: app.after_request(add_cost)]
    for step in steps if is_before else reversed(steps):
        step()
    assert "x-used" not in ask(app).headers
    assert limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 850


def test_a_slot_is_held_until_a_file_is_closed() -> None:
    """A file that Flask sends holds its slot until the server closes the response. A HEAD has nothing to read."""
    app = app_of(one_rule("1 concurrent"), {"/": lambda: flask.send_file(io.BytesIO(b"ab"), "text/plain")})
    assert ask(app, method="HEAD").status_code == 200
    for _ in range(2):
        held = ask(app)
        assert [held.status_code, ask(app).status_code] == [200, 429]
        held.close()


def test_redirects_and_errors_of_the_framework_hold_no_slot() -> None:
    """Werkzeug streams them, and a client of tests does not close them. All of them are decided."""
    app = app_of(one_rule("1 concurrent"), {"/folder/": lambda: "hello"})
    unread = [ask(app, path) for path in ("/folder", "/nowhere", "/folder", "/nowhere")]
    assert [response.status_code for response in unread] == [308, 404, 308, 404]
    assert [response.headers["x-ratelimit-limit"] for response in unread] == ["1"] * 4
