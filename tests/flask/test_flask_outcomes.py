"""Flask requests and streams settle outcomes, costs, slots and delays at their end."""

import asyncio
import io
import re
import threading
from typing import Any

import flask
import pytest
from flask import Flask, copy_current_request_context, request
from flask_calls import app_of, ask, hello, one_rule, statuses, still
from tables import each
from werkzeug.test import Client

from ratelimit_mw import Event, Limiter, Rule
from ratelimit_mw.flask import RateLimiter, check
from ratelimit_mw.testing import ManualClock

FAILURES = {"count_when": {"status": [401, 500]}}


def test_the_sent_status_decides() -> None:
    """The outcome is the status after all functions that change or replace the response."""
    limiter = one_rule("2/minute", **FAILURES)
    app = app_of(limiter)
    app.after_request(lambda response: flask.Response("no", 401))
    assert statuses(app, times=2) == [401, 401]
    assert not limiter.peek({"ip": "192.0.2.7"})


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


def test_a_call_that_bypasses_the_layer_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Connexion keeps the wsgi_app from before the extension. Nothing would end the request and return its slot."""
    app = Flask("app")
    early = app.wsgi_app
    RateLimiter(app, limiter=one_rule("9 concurrent"))
    assert Client(early).get("/").status_code == 500
    assert re.search(r"Connexion.* ratelimit_mw\.asgi\.RateLimitMiddleware", caplog.text)


# -- a copy of a request's context, in another thread ----------------------------------------------------------

CHECKED = {"rules": [{"name": "mails", "limits": "2/minute", "match": {"view": ""}}]}


def in_thread(function: Any) -> None:
    """Run a function in a thread with a copy of the context, and wait for its end."""
    thread = threading.Thread(target=copy_current_request_context(function))
    thread.start()
    thread.join()


def test_a_copy_in_a_thread_ends_no_request() -> None:
    """The request keeps its slot until it ends itself. It then counts, and its response has the headers."""
    inside: list[int] = []

    def login() -> Any:
        in_thread(lambda: request.path)
        inside.extend(ask(app).status_code for _ in request.args)
        return "wrong", 401

    failed = Rule(name="failed", limits="2/minute", count_when={"status": 401})
    rules = [failed, Rule(name="slots", limits="1 concurrent")]
    app = app_of(Limiter(rules, clock=ManualClock(999_960.0)), {"/": login})
    responses = [ask(app, path) for path in ("/?inside", "/", "/")]
    assert [response.status_code for response in responses] == [401, 401, 429]
    assert (inside, responses[0].headers["X-RateLimit-Remaining"]) == ([429], "1")


@each("run", [in_thread, lambda function: copy_current_request_context(function)()])
def test_a_check_in_a_copy_belongs_to_the_request(run: Any) -> None:
    """The headers of the response show it."""

    def view() -> str:
        run(lambda: check("mails"))
        return "hello"

    app = app_of(still(CHECKED), {"/": view})
    assert [ask(app).headers.get("X-RateLimit-Remaining") for _ in range(2)] == ["1", "0"]


# -- rejections that code raises anywhere ----------------------------------------------------------------------

RULES = {"rules": [{"name": "failed", "limits": "1/minute", "match": {"view": ""}}]}


def raise_own(*_: Any) -> None:
    """Raise a rejection of a limiter that no middleware knows."""
    own = Limiter([Rule(name="own", limits="1/hour", key=[])], clock=ManualClock(1_000_000.0))
    own.hit({})
    own.hit({}).raise_for_limit()


def after_this() -> str:
    flask.after_this_request(raise_own)  # type: ignore[arg-type]
    return "hello"


async def in_a_task() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(raise_own))


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
        (lambda app: None, in_a_task),
    ],
)
def test_a_rejection_outside_of_a_view_is_a_429(register: Any, view: Any, testing: bool) -> None:
    """Functions before the extension, functions after the request, error handlers, and groups of tasks."""
    app = Flask("app")
    app.testing = testing
    register(app)
    RateLimiter(app, limiter=still())
    app.add_url_rule("/", view_func=view)
    rejected = ask(app)
    assert (rejected.status_code, rejected.headers["RateLimit"][:9]) == (429, '"own";r=0')
    assert (rejected.headers["Retry-After"], rejected.mimetype) == ("3600", "application/problem+json")


def test_an_early_rejection_names_its_endpoint() -> None:
    """Code of the application rejects the request before the extension decides it."""
    app, events = Flask("app"), list[Event]()
    app.before_request(raise_own)
    RateLimiter(app, limiter=Limiter([Rule(limits="9/hour")], observers=[events.append]))
    app.add_url_rule("/items/<name>", view_func=hello)
    assert ask(app, "/items/1").status_code == 429
    assert [(event.outcome, event.endpoint) for event in events] == [("rejected", "/items/{name}")]


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
