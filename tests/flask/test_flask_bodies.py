"""Body fields are features in Flask. The application gets its body, even when another function read it first."""

import io
from typing import Any

from flask import Flask, request
from flask_calls import ask, one_rule
from tables import each

from ratelimit_mw.flask import RateLimiter


def nothing() -> None:
    pass


def parses() -> None:
    """Parse the form, as extensions against forged requests do."""
    assert request.form is not None


def reads() -> None:
    assert request.get_data() is not None


def parses_json() -> None:
    assert request.get_json(silent=True) != []


before_all = each("before", [nothing, parses, reads, parses_json])


def app_of(before: Any, key: str, **options: Any) -> Flask:
    """Return an application whose view responds with the fields of the body, after this function."""
    app = Flask("app")
    app.before_request(before)
    app.post("/")(lambda: request.get_json() if request.is_json else dict(request.form))
    RateLimiter(app, limiter=one_rule("1/minute", key=[key]), **options)
    return app


@before_all
@each("kind", ["form", "file", "json"])
def test_a_field_is_found_after_another_function_read_the_body(before: Any, kind: str) -> None:
    """A second request with the same email is rejected, another email is served, and the view has the whole body."""
    app = app_of(before, "json:email" if kind == "json" else "form:email")

    def send(email: str | list[str]) -> Any:
        fields = {"email": email, "word": "a;b&c"}
        file = {"file": (io.BytesIO(b"x"), "a.py")} if kind == "file" else {}
        return ask(app, method="POST", **({"json": fields} if kind == "json" else {"data": {**fields, **file}}))

    first = send("ann@example.com")
    assert (first.status_code, first.json) == (200, {"email": "ann@example.com", "word": "a;b&c"})
    assert [send(email).status_code for email in ("ann@example.com", "bob@example.com")] == [429, 200]
    if kind != "json":  # a field with two values is invalid
        assert [send([email, "eve@example.com"]).status_code for email in ("carl@x", "dan@x")] == [200, 429]


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


@before_all
def test_a_field_of_a_chunked_body_is_found_after_another_function_read_it(before: Any) -> None:
    """Clients that send chunks have one count each, and the view has the whole body."""
    app = app_of(before, "json:email")
    sent = [send_chunked(app, b'{"email": "%b@example.com"}' % name) for name in (b"ann", b"bob", b"ann")]
    assert [response.status_code for response in sent] == [200, 200, 429]
    assert sent[1].json == {"email": "bob@example.com"}


def test_a_chunked_body_without_end_is_read_up_to_the_limit() -> None:
    """A body over body_limit is invalid, however little of it an earlier function has read."""
    app = app_of(parses, "json:email", body_limit=1000)
    app.view_functions["<lambda>"] = lambda: request.stream.read(5)
    assert [send_chunked(app, Wire()).status_code for _ in range(2)] == [200, 429]


@each("send", [send_chunked, lambda app, body: ask(app, method="POST", data=body)])
@each(
    "reading",
    [
        lambda: request.stream.read(),
        lambda: request.get_json(cache=False, silent=True),
        lambda: request.environ["wsgi.input"].read(),
    ],
)
def test_a_consumed_body_that_is_not_kept_is_invalid(send: Any, reading: Any) -> None:
    """When another function consumes the stream, all such requests share one count, however the body was sent."""
    app = app_of(lambda: reading() and None, "json:email")
    app.view_functions["<lambda>"] = lambda: ""
    assert [send(app, b'{"email": "%b"}' % name).status_code for name in (b"a", b"b")] == [200, 429]
