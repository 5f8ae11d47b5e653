"""Body fields are features in Flask. The application gets its body, even when another function read it first."""

from __future__ import annotations

import io
from typing import Any

from flask import Flask, request
from flask_calls import ask, one_rule
from tables import each

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


@each("before", [nothing, parses, reads, parses_json])
@each("sent", [FORM, FILE, JSON])
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


class Wire(io.BytesIO):
    """A chunked body without end, which notes how much of it was read."""

    def read(self, size: int | None = -1) -> bytes:
        assert size, "the body was read without bound"
        assert size > 0, "the body was read without bound"
        return b" " * size

    def readinto(self, buffer: Any) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)


CHUNKED = {"environ_overrides": {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}}


def send_chunked(app: Flask, content: bytes | io.BytesIO) -> Any:
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    kind = "application/json"
    return ask(app, method="POST", input_stream=stream, content_type=kind, **CHUNKED)  # type: ignore[arg-type]


@each("before", [nothing, parses, reads, parses_json])
def test_a_field_of_a_chunked_body_is_found_after_another_function_read_it(before: Any) -> None:
    """Clients that send chunks have one count each, and the view has the whole body."""
    app = Flask("app")
    app.before_request(before)
    RateLimiter(app, limiter=one_rule("1/minute", key=["json:email"]))
    app.post("/")(lambda: request.get_json())
    sent = [send_chunked(app, b'{"email": "%b@example.com"}' % name) for name in (b"ann", b"bob", b"ann")]
    assert [response.status_code for response in sent] == [200, 200, 429]
    assert sent[1].json == {"email": "bob@example.com"}


def test_a_chunked_body_without_end_is_read_up_to_the_limit() -> None:
    """A body over body_limit is invalid, however little of it an earlier function has read."""
    app = Flask("app")
    app.before_request(parses)
    RateLimiter(app, limiter=one_rule("1/minute", key=["json:email"]), body_limit=1000)
    app.post("/")(lambda: request.stream.read(5))
    assert [send_chunked(app, Wire()).status_code for _ in range(2)] == [200, 429]


@each("send", [send_chunked, lambda app, body: ask(app, method="POST", data=body)])
@each("reading", [lambda: request.stream.read(), lambda: request.get_json(cache=False, silent=True)])
def test_a_consumed_body_that_is_not_kept_is_invalid(send: Any, reading: Any) -> None:
    """When another function consumes the stream, all such requests share one count, however the body was sent."""
    app = Flask("app")
    app.before_request(lambda: reading() and None)
    RateLimiter(app, limiter=one_rule("1/minute", key=["json:email"]))
    assert [send(app, b'{"email": "%b"}' % name).status_code for name in (b"a", b"b")] == [404, 429]
