"""A copy of a request's context, in another thread, leaves the limits of the request in effect."""

from __future__ import annotations

import threading
from typing import Any

from flask import copy_current_request_context, request
from flask_calls import app_of, ask, one_rule, still
from tables import each

from ratelimit_mw.flask import check

CHECKED = {"rules": [{"name": "mails", "limits": "2/minute", "match": {"view": ""}}]}


def in_thread(function: Any) -> None:
    """Run a function in a thread with a copy of the context, and wait for its end."""
    thread = threading.Thread(target=copy_current_request_context(function))
    thread.start()
    thread.join()


def test_failed_logins_count_after_a_thread() -> None:
    """The thread ends its copy. The request then counts, and its response has the headers."""

    def login() -> Any:
        in_thread(lambda: request.path)
        return "wrong", 401

    app = app_of(one_rule("2/minute", count_when={"status": 401}), {"/": login})
    responses = [ask(app) for _ in range(3)]
    assert [response.status_code for response in responses] == [401, 401, 429]
    assert responses[0].headers["X-RateLimit-Remaining"] == "1"


def test_a_slot_is_held_after_a_thread() -> None:
    """The slot is returned when the request itself ends."""
    statuses: list[int] = []

    def view() -> str:
        in_thread(lambda: request.path)
        if not statuses:
            statuses.append(0)
            statuses.append(ask(app).status_code)
        return "hello"

    app = app_of(one_rule("1 concurrent"), {"/": view})
    assert [ask(app).status_code, *statuses[1:], ask(app).status_code] == [200, 429, 200]


@each("run", [in_thread, lambda function: copy_current_request_context(function)()])
def test_a_check_in_a_copy_belongs_to_the_request(run: Any) -> None:
    """The headers of the response show it."""

    def view() -> str:
        run(lambda: check("mails"))
        return "hello"

    app = app_of(still(CHECKED), {"/": view})
    assert [ask(app).headers.get("X-RateLimit-Remaining") for _ in range(2)] == ["1", "0"]
