"""A rejection is a 429 wherever code of a Flask application raises it, even outside views."""

from __future__ import annotations

from typing import Any

import flask
from flask import Flask
from flask_calls import app_of, ask, still
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.flask import RateLimiter, check
from ratelimit_mw.testing import ManualClock

RULES = {"rules": [{"name": "failed", "limits": "1/minute", "match": {"view": ""}}]}


def raise_own(*_: Any) -> None:
    """Raise a rejection of a limiter that no middleware knows."""
    own = Limiter([Rule(name="own", limits="1/hour", key=[])], clock=ManualClock(1_000_000.0))
    own.hit({})
    own.hit({}).raise_for_limit()


def after_this() -> str:
    flask.after_this_request(raise_own)  # type: ignore[arg-type]
    return "hello"


@each("testing", [True, False])
@each(
    ("register", "view"),
    [
        (lambda app: app.before_request(raise_own), flask.abort),
        (lambda app: app.url_value_preprocessor(raise_own), flask.abort),
        (lambda app: app.register_error_handler(404, raise_own), lambda: flask.abort(404)),
        (lambda app: app.register_error_handler(ValueError, raise_own), lambda: int("x")),
        (lambda app: app.after_request(raise_own), lambda: "hello"),
        (lambda app: None, after_this),
    ],
)
def test_a_rejection_outside_of_a_view_is_a_429(register: Any, view: Any, testing: bool) -> None:
    """Functions before the extension, functions after the request, and error handlers."""
    app = Flask("app")
    app.testing = testing
    register(app)
    RateLimiter(app, limiter=still())
    app.add_url_rule("/", view_func=view)
    rejected = ask(app)
    assert (rejected.status_code, rejected.headers["RateLimit"][:9]) == (429, '"own";r=0')
    assert (rejected.headers["Retry-After"], rejected.mimetype) == ("3600", "application/problem+json")


def failing_login(settings: dict[str, Any] = RULES) -> Flask:
    """Return an application that counts failed logins where it responds to them."""
    app = app_of(still(settings), {"/": lambda: flask.abort(401)})

    @app.errorhandler(401)
    def failed(_: Exception) -> tuple[str, int]:
        check("failed")
        return "wrong", 401

    return app


def test_a_check_in_an_error_handler_rejects() -> None:
    """The application's own handler for 429 shapes the response."""
    app = failing_login()
    app.register_error_handler(429, lambda error: (f"slow down: {error.description}", 429))
    assert [ask(app).text for _ in range(2)] == ["wrong", "slow down: rejected by failed (1/minute): retry after 60 s"]


def test_a_handler_that_fails_is_a_500() -> None:
    """Flask logs its error as it logs any other."""
    app = failing_login()
    app.register_error_handler(429, lambda error: 1 / 0)
    assert [ask(app).status_code for _ in range(2)] == [401, 500]


def test_a_rejection_in_a_handler_is_an_outcome() -> None:
    """A rule that counts by outcome sees the 429, which is the status that the client receives."""
    counted = {"name": "failures", "limits": "9/minute", "count_when": {"status": 401}}
    app = failing_login({"rules": [*RULES["rules"], counted]})
    limiter = app.extensions["ratelimit_mw"].limiter
    assert [ask(app).status_code for _ in range(3)] == [401, 429, 429]
    assert limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[-1].remaining == 8
