"""Rules on body fields under WSGI leave the body that the application reads unchanged."""

from __future__ import annotations

import io
import json
from typing import Any
from wsgiref.validate import validator

import flask
import pytest
from calls import ask_wsgi
from hypothesis import given
from hypothesis import strategies as st
from tables import each
from wsgi_calls import HEADERS, environ_of, listing

from ratelimit_mw import Limiter
from ratelimit_mw.http.request import Request
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import check
from ratelimit_mw.wsgi.body import ReplayedInput
from ratelimit_mw.wsgi.exchange import WSGIRequest
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware

ANN, BOB = (json.dumps({"user": name}).encode() for name in ("ann", "bob"))
LIMIT = 65_536


def with_middleware(app: Any, key: Any = ("json:user",), limits: str = "1/minute", **more: Any) -> Any:
    rule = {"name": "api", "key": list(key), "limits": limits}
    return RateLimitMiddleware(app, limiter=Limiter.from_settings({"rules": [rule], **more}, clock=ManualClock(1.0)))


class Wire(io.BytesIO):
    """A stream of a slow server: a read returns at most ``at_once`` bytes, and ``seen`` counts the bytes read."""

    def __init__(self, content: bytes, at_once: int = 1_000_000) -> None:
        super().__init__(content)
        self.at_once = at_once
        self.seen = 0
        self.reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        data = super().read(self.at_once if size is None or size < 0 else min(size, self.at_once))
        self.seen += len(data)
        return data


def post(content: bytes | Wire, length: int | str | None = "true", **more: Any) -> dict[str, Any]:
    wire = content if isinstance(content, Wire) else Wire(content)
    announced = str(len(wire.getvalue())) if length == "true" else None if length is None else str(length)
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "wsgi.input": wire,
        "CONTENT_LENGTH": announced,
    }
    return environ_of(**{**environ, **more})


def chunked(content: bytes | Wire, **more: Any) -> dict[str, Any]:
    """Return a body of unknown length on a stream that marks its own end."""
    return post(content, None, HTTP_TRANSFER_ENCODING="chunked", **{"wsgi.input_terminated": True, **more})


def status(app: Any, environ: dict[str, Any]) -> str:
    codes: list[str] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> Any:
        codes.append(status[:3])

    body = app(environ, start)
    try:
        list(body)
    finally:
        getattr(body, "close", lambda: None)()
    return codes[0]


class RouteReader:
    """An application that records the result of ``read`` on its input."""

    def __init__(self, read: Any = lambda stream: stream.read()) -> None:
        self._read = read
        self.found: Any = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.found = self._read(environ["wsgi.input"])
        return listing(environ, start_response)


# -- counts ------------------------------------------------------------------------------------------------


@each("send", [post, chunked])
def test_each_value_of_a_field_has_its_own_count(send: Any) -> None:
    """The body has a length or none, and arrives in one read or in many."""
    app = with_middleware(listing)
    requests = [ANN, Wire(BOB, 3), b'{"user" : "ann"}', b"{}", b"{}", b"", b""]
    assert [status(app, send(content)) for content in requests] == ["200", "200", "429", "200", "200", "200", "200"]


@each(
    "request_",
    [
        lambda: post(b"{"),
        lambda: post(ANN, CONTENT_TYPE="text/plain"),
        lambda: post(ANN, CONTENT_TYPE=""),
        lambda: post(ANN, HTTP_CONTENT_ENCODING="gzip"),
        lambda: post(ANN.ljust(LIMIT + 1)),
        lambda: post(ANN, len(ANN) + 1),
        lambda: post(ANN, "9" * 30),
        lambda: post(ANN, "fifteen"),
        lambda: post(ANN, "-1"),
        lambda: post(ANN, "\u0661\u0665"),
        lambda: chunked(ANN.ljust(LIMIT + 1)),
    ],
)
def test_invalid_bodies_share_one_count(request_: Any) -> None:
    """Malformed, oversized and truncated bodies, and those with an invalid length, share one limit."""
    app = with_middleware(listing)
    assert [status(app, environ) for environ in (request_(), post(b"{"), post(ANN))] == ["200", "429", "200"]


def test_a_chunked_body_ignores_its_content_length() -> None:
    """A chunked body ends where its stream ends, for any Content-Length beside it."""
    app = with_middleware(RouteReader())
    assert [status(app, chunked(ANN, CONTENT_LENGTH=length)) for length in ("5", None)] == ["200", "429"]
    assert app.app.found == ANN


# -- reads of the body -------------------------------------------------------------------------------------


@each(
    ("environ", "bytes_read"),
    [
        (lambda wire: post(wire, len(ANN)), len(ANN)),
        (lambda wire: post(wire, 5), 5),
        (lambda wire: post(wire, 0), 0),
        (lambda wire: post(wire, None), 0),
        (lambda wire: post(wire, LIMIT + 1), 0),
        (lambda wire: post(wire, "x"), 0),
        (lambda wire: chunked(wire), LIMIT + 1),
        (lambda wire: post(wire, 5, **{"wsgi.input_terminated": True}), 5),
        (lambda wire: post(wire, LIMIT + 1, **{"wsgi.input_terminated": True}), 0),
        (lambda wire: post(wire, None, **{"wsgi.input_terminated": False}), 0),
    ],
)
def test_no_byte_beyond_the_content_length_is_read(environ: Any, bytes_read: int) -> None:
    """A read beyond the announced length would block. A body that is announced as too long is not read."""
    wire = Wire(ANN + b" " * 2 * LIMIT)
    status(with_middleware(listing), environ(wire))
    assert wire.seen == bytes_read


def test_a_rule_that_does_not_match_reads_no_body() -> None:
    """A feature that your own function provides needs no body either."""
    for app in (
        with_middleware(listing, key=["ip"]),
        RateLimitMiddleware(listing, settings=BY_USER, features={"json:user": str}),
    ):
        wire = Wire(ANN)
        environ = post(wire)
        status(app, environ)
        assert (wire.reads, environ["wsgi.input"]) == (0, wire)


BY_USER = {"rules": [{"key": "json:user", "limits": "1/minute"}]}


# -- the body of the application ---------------------------------------------------------------------------

TEXT = b"one\ntwo\n\nthree three three\nlast"
READS: dict[str, Any] = {
    "all": lambda stream: stream.read(),
    "none": lambda stream: stream.read(0),
    "none given": lambda stream: stream.read(None),
    "less than none": lambda stream: stream.read(-1),
    "by bytes": lambda stream: [stream.read(1) for _ in range(len(TEXT) + 2)],
    "by sevens": lambda stream: [stream.read(7) for _ in range(7)],
    "too many": lambda stream: [stream.read(1000), stream.read(1000)],
    "lines": lambda stream: [stream.readline() for _ in range(7)],
    "lines, less than none": lambda stream: [stream.readline(-1) for _ in range(7)],
    "short lines": lambda stream: [stream.readline(4) for _ in range(20)],
    "no lines": lambda stream: stream.readline(0),
    "all lines": lambda stream: stream.readlines(),
    "some lines": lambda stream: [stream.readlines(8), stream.readlines(1), stream.readlines(0)],
    "as many lines": lambda stream: stream.readlines(None),
    "iteration": list,
    "mixed": lambda stream: [stream.read(2), stream.readline(), next(iter(stream)), stream.read(3), stream.readlines()],
}


@pytest.mark.slow
@each("read", READS.values())
@each("limit", [1, 5, 8, len(TEXT) - 1, len(TEXT), 1000])
@each("send", [post, chunked])
def test_the_application_reads_the_same_bytes(read: Any, limit: int, send: Any) -> None:
    """The application reads by any method and in any portions, after all, a part or none of the body was read ahead."""
    app = RouteReader(read)
    status(with_middleware(app, body_limit=limit), send(TEXT, **{"wsgi.input": io.BytesIO(TEXT)}))
    assert app.found == read(io.BytesIO(TEXT))


@given(st.integers(0, 40), st.lists(st.tuples(st.sampled_from(["read", "readline", "readlines"]), st.integers(-1, 12))))
def test_a_replayed_stream_equals_the_original(at: int, calls: list[tuple[str, int]]) -> None:
    """For any part that was read ahead and any calls, the replayed stream returns the same results."""
    whole = io.BytesIO(TEXT)
    replayed = ReplayedInput(TEXT[:at], io.BytesIO(TEXT[at:]))
    for method, size in calls:
        assert getattr(replayed, method)(size) == getattr(whole, method)(size)
    assert list(replayed) == list(whole)


def test_a_truncated_body_reaches_the_application() -> None:
    """The application reads the bytes that arrived and then the end of the stream."""
    app = RouteReader()
    status(with_middleware(app), post(ANN, 100))
    assert app.found == ANN


@each("chunked", [False, True])
def test_an_error_of_the_stream_reaches_the_application(chunked: bool) -> None:
    """The body is invalid for the limit, which counts the request. The application reads up to the same error."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if found := super().read(size):
                return found
            if self.seen_end:
                return b"more"
            self.seen_end = True
            raise OSError("connection lost")

        seen_end = False

    read: list[bytes] = []

    def app(environ: Any, start_response: Any) -> Any:
        read.append(environ["wsgi.input"].read(4))
        return environ["wsgi.input"].read(100)

    framing: dict[str, Any] = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True} if chunked else {}
    limited = with_middleware(app)
    with pytest.raises(OSError, match="connection lost"):
        status(limited, post(ANN, 100, **framing, **{"wsgi.input": Broken(b"half")}))
    assert read == [b"half"]
    assert status(limited, post(ANN, 100, **framing, **{"wsgi.input": Broken(b"more")})) == "429"


def test_wsgiref_validate_accepts_both_sides() -> None:
    """``wsgiref.validate`` wraps the middleware and a strict application, which passes a size to each read."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        stream = environ["wsgi.input"]
        lines = [stream.read(4), stream.readline(), *stream.readlines(), *stream]
        start_response("200 OK", HEADERS)
        return [b"".join(lines)]

    for environ in (post(ANN), chunked(ANN.ljust(LIMIT + 100))):
        environ = {**environ, "SCRIPT_NAME": "", "wsgi.input": io.BytesIO(environ["wsgi.input"].getvalue())}
        expected = environ["wsgi.input"].getvalue()
        body = validator(with_middleware(validator(app), limits="9/minute"))(environ, lambda *args: lambda data: None)  # type: ignore[arg-type]
        assert b"".join(body) == expected
        body.close()  # type: ignore[attr-defined]


def test_flask_reads_a_body_that_was_read_ahead() -> None:
    """Flask reads JSON, forms, files and streams behind the middleware."""
    app = flask.Flask(__name__)

    @app.post("/json")
    def as_json() -> Any:
        return flask.jsonify(flask.request.get_json())

    @app.post("/form")
    def as_form() -> Any:
        return flask.jsonify(flask.request.form)

    @app.post("/stream")
    def as_stream() -> Any:
        return b"".join(flask.request.stream)

    served = with_middleware(app, key=["email"], limits="2/minute")
    assert ask_wsgi(served, "/json", "POST", json={"email": "ann@x.org"}).json() == {"email": "ann@x.org"}
    assert ask_wsgi(served, "/form", "POST", data={"email": "Ann@X.org"}).json() == {"email": "Ann@X.org"}
    assert ask_wsgi(served, "/form", "POST", files={"email": (None, "ann@x.org")}).status_code == 429
    assert ask_wsgi(served, "/form", "POST", files={"email": (None, "b@x.org")}).json() == {"email": "b@x.org"}
    content = b"x\n" * 100_000
    assert ask_wsgi(served, "/stream", "POST", content=content).content == content


def test_a_request_without_access_to_its_body_is_an_error() -> None:
    """An adapter that reads no bodies raises an error instead of skipping the limit."""

    class Bodiless(WSGIRequest):
        body = Request.body

    with pytest.raises(NotImplementedError, match="Bodiless reads no bodies"):
        Bodiless(environ_of()).body(LIMIT)
    assert WSGIRequest(chunked(b" " * 10)).body(9) is INVALID


@each("send", [post, chunked])
def test_a_body_that_the_application_has_read_is_invalid(send: Any) -> None:
    """All requests whose body the application has read before a check share a count, even chunked ones."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read()
        check(environ, "named")
        return listing(environ, start_response)

    rules = [{"name": "named", "key": ["json:user"], "limits": "1/minute", "match": {"view": ""}}]
    rate = Limiter.from_settings({"rules": rules}, clock=ManualClock(1.0))
    guarded = RateLimitMiddleware(app, limiter=rate)
    assert [status(guarded, send(content)) for content in (ANN, BOB)] == ["200", "429"]
