"""Body fields are features in Flask. The application gets its body, even when another function read it first."""

from __future__ import annotations

import io
from typing import Any

import pytest
from flask import Flask, request
from flask_calls import ask, one_rule

from ratelimit_mw.flask import RateLimiter

FORM = {"data": {"email": "ann@example.com", "word": "a;b&c"}}
FILE = {"data": {"email": "ann@example.com", "file": b"x"}}
JSON = {"json": {"email": "ann@example.com"}}


def nothing() -> None:
    pass


def parses() -> None:
    """Parse the form, as extensions against forged requests do."""
    assert request.form is not None


def reads() -> None:
    assert request.get_data() is not None


def parses_json() -> None:
    assert request.get_json(silent=True) != []


@pytest.mark.parametrize("before", [nothing, parses, reads, parses_json])
@pytest.mark.parametrize("sent", [FORM, FILE, JSON], ids=["form", "file", "json"])
def test_a_field_is_found_after_another_function_read_the_body(before: Any, sent: dict[str, Any]) -> None:
    """A second request with the same email is rejected, another email is served, and the view has the whole body."""
    app = Flask("app")
    app.before_request(before)

    @app.post("/")
    def view() -> Any:
        return request.get_json() if request.is_json else dict(request.form)

    name = "json:email" if sent is JSON else "form:email"
    RateLimiter(app, limiter=one_rule("1/minute", key=[name]))
    kind = next(iter(sent))

    def send(email: str) -> Any:
        fields = {**sent[kind], "email": email}
        if "file" in fields:
            fields["file"] = (io.BytesIO(b"x"), "a.py")
        return ask(app, method="POST", **{kind: fields})

    first = send("ann@example.com")
    assert (first.status_code, first.json["email"]) == (200, "ann@example.com")
    assert first.json.get("word") == sent[kind].get("word")
    assert send("ann@example.com").status_code == 429
    assert send("bob@example.com").status_code == 200


def test_a_consumed_body_is_invalid_and_not_missing() -> None:
    """When another function consumes the stream, all such requests share one count."""
    app = Flask("app")

    @app.before_request
    def throw_away() -> None:
        request.stream.read()

    RateLimiter(app, limiter=one_rule("1/minute", key=["form:email"]))
    assert [ask(app, method="POST", data={"email": name}).status_code for name in "ab"] == [404, 429]
    assert ask(app).status_code == 404
