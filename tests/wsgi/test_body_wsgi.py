"""Rules on body fields under WSGI leave the body that the application reads unchanged."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each
from wsgi_calls import Served, environ_of, listing

from ratelimit_mw import Limiter
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import check
from ratelimit_mw.wsgi.body import ReplayedInput
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
    return Served(app, **environ).status[:3]


class RouteReader:
    """An application that records the result of ``read`` on its input."""

    def __init__(self, read: Any = lambda stream: stream.read()) -> None:
        self._read = read
        self.found: Any = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.found = self._read(environ["wsgi.input"])
        return listing(environ, start_response)


# -- counts ------------------------------------------------------------------------------------------------


@each(
    "invalid",
    [
        lambda: post(ANN.ljust(LIMIT + 1)),
        lambda: post(ANN, len(ANN) + 1),
        lambda: post(ANN, "9" * 5000),
        lambda: post(ANN, "fifteen"),
        lambda: post(ANN, "-1"),
        lambda: post(ANN, "\u0661\u0665"),
        lambda: chunked(ANN.ljust(LIMIT + 1)),
    ],
)
def test_invalid_bodies_share_one_count(invalid: Any) -> None:
    """Oversized and truncated bodies, and those with an invalid length, share one limit."""
    app = with_middleware(listing)
    assert [status(app, environ) for environ in (invalid(), post(b"{"), post(ANN))] == ["200", "429", "200"]


@each("body", [lambda: post(b"", None), lambda: post(b"", ""), lambda: post(b"", 0), lambda: chunked(b"")])
def test_a_request_without_a_body_has_no_field(body: Any) -> None:
    """The rule does not apply, so such requests do not share the limit of invalid bodies."""
    app = with_middleware(listing)
    assert [status(app, environ) for environ in (post(b"{"), body(), body())] == ["200"] * 3


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
        (lambda wire: post(wire, None, **{"wsgi.input_terminated": True}), LIMIT + 1),
    ],
)
def test_no_byte_beyond_the_content_length_is_read(environ: Any, bytes_read: int) -> None:
    """A read beyond the announced length would block. A body that is announced as too long is not read."""
    wire = Wire(ANN + b" " * 2 * LIMIT)
    status(with_middleware(listing), environ(wire))
    assert wire.seen == bytes_read


def test_a_rule_that_does_not_match_reads_no_body() -> None:
    """A feature that your own function provides needs no body either."""
    own: Any = {"settings": {"rules": [{"key": "json:user", "limits": "1/minute"}]}, "features": {"json:user": str}}
    for app in (with_middleware(listing, key=["ip"]), RateLimitMiddleware(listing, **own)):
        wire = Wire(ANN)
        served = Served(app, **post(wire))
        assert (wire.reads, served.environ["wsgi.input"]) == (0, wire)


# -- the body of the application ---------------------------------------------------------------------------

TEXT = b"one\ntwo\n\nthree three three\nlast"
SIZES = st.none() | st.integers(-1, 12)


@given(st.integers(0, 40), st.lists(st.tuples(st.sampled_from(["read", "readline", "readlines"]), SIZES)))
def test_a_replayed_stream_equals_the_original(at: int, calls: list[tuple[str, Any]]) -> None:
    """For any part that was read ahead and any calls, the replayed stream returns the same results.

    As in wsgiref, the original has a buffer: the hint of ``readlines`` means another number of lines to ``BytesIO``.
    """
    whole = io.BufferedReader(io.BytesIO(TEXT))
    replayed = io.BufferedReader(ReplayedInput(TEXT[:at], io.BytesIO(TEXT[at:])))
    for method, size in calls:
        assert getattr(replayed, method)(*(() if size == -1 else (size,))) == getattr(whole, method)(size)
    assert list(replayed) == list(whole)


@each("limit", [1, len(TEXT), 1000])
@each("send", [post, chunked])
def test_the_application_reads_the_same_bytes(limit: int, send: Any) -> None:
    """The application reads them after all, a part or none of the body was read ahead."""
    app = RouteReader(lambda stream: [stream.read(2), stream.readline(), *stream])
    status(with_middleware(app, body_limit=limit), send(TEXT, **{"wsgi.input": io.BytesIO(TEXT)}))
    assert b"".join(app.found) == TEXT


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
    assert status(guarded, post(b"", None, **{"wsgi.input_terminated": True})) == "200"
