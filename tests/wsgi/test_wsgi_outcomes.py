"""The WSGI middleware settles delays, outcomes, costs and slots at the end of every response."""

import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from calls import limiter
from flask import Flask
from limiter_ways import renewed
from tables import each
from wsgi_calls import HEADERS, Environ, Served, environ_of, listing

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.wsgi import RateLimitMiddleware, check


class LateStart:
    """A body with a length that starts its response when the server iterates it."""

    def __init__(self, start_response: Any) -> None:
        self._start_response = start_response

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[bytes]:
        self._start_response("200 OK", HEADERS)
        yield b"x"


def answer(app: Any, rate: Limiter, **environ: Any) -> tuple[Any, dict[str, str]]:
    """Return the body and the headers that the server gets. The server has sent no byte yet."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    guarded = RateLimitMiddleware(app, limiter=rate)
    body = guarded(environ_of(**environ), lambda *start: started.append(start))  # type: ignore[arg-type, return-value]
    return body, dict(started[0][1]) if started else {}


@each("body", [[b"x"], (), io.BytesIO(b"x")])
@each(
    ("rule", "remaining"),
    [
        ({"count_when": {"status": 401}}, 10),
        ({"count_when": {"marked": True}}, 10),
        ({"count_unless": {"status": 401}}, 9),
    ],
)
def test_a_complete_body_is_settled_before_it_is_sent(body: Any, rule: dict[str, Any], remaining: int) -> None:
    """A client may send its next request before the server closes the body. The store already has the true numbers."""

    def app(environ: Environ, start_response: Any) -> Any:
        start_response("200 OK", HEADERS)
        return body

    rate = limiter("10/minute", key=[], **rule)
    returned, headers = answer(app, rate)
    assert returned is body
    assert rate.peek({}, cost=0).decisions[0].remaining == remaining
    assert headers["X-RateLimit-Remaining"] == str(remaining)


@each("in_view", [False, True])
def test_a_complete_body_keeps_its_slot_until_it_is_closed(in_view: bool) -> None:
    """The response is not sent yet. The outcome of the same request is settled with the slot, also that of a check."""
    match = {"match": {"view": ""}} if in_view else {}
    rate = limiter("1 concurrent; 10/minute", key=[], count_when={"status": 401}, **match)

    def app(environ: Environ, start_response: Any) -> list[bytes]:
        _ = in_view and check(environ, "api")
        return listing(environ, start_response)

    def left() -> list[int]:
        verdict = rate.decide(rate.rules.plan_for_rule("api", None), {}, 0, consume=False)
        return [decision.remaining for decision in verdict.decisions]

    body, _ = answer(app, rate)
    assert left() == [0, 9]
    body.close()
    assert left() == [1, 10]
    rate.close()


@each(("rule", "remaining"), [({"status": 401}, [10, 10]), ({"marked": True}, [9, 10])])
def test_a_stream_is_settled_before_its_first_bytes_are_sent(rule: dict[str, Any], remaining: list[int]) -> None:
    """The first bytes make the status final. A mark may follow until the end."""

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("401 Unauthorized", HEADERS)
        yield b""
        try:
            raise ValueError
        except ValueError:
            start_response("200 OK", HEADERS, sys.exc_info())
        yield b"hel"
        yield b"lo"

    rate = limiter("10/minute", key=[], count_when=rule)
    body, _ = answer(app, rate)

    def left() -> int:
        return rate.peek({}, cost=0).decisions[0].remaining

    assert (next(body), left()) == (b"", 9)
    assert (next(body), left()) == (b"hel", remaining[0])
    assert list(body) == [b"lo"]
    body.close()
    assert left() == remaining[1]


@each("method", ["GET", "HEAD"])
def test_a_response_of_flask_is_settled_before_it_is_sent(method: str) -> None:
    """Werkzeug wraps the body of each response. A response to HEAD has no bytes."""
    app = Flask("app")
    app.add_url_rule("/", view_func=lambda: "in")
    rate = limiter("2/minute", key=[], count_when={"status": 401})
    body, headers = answer(app.wsgi_app, rate, REQUEST_METHOD=method)
    assert next(body, None) == (b"in" if method == "GET" else None)
    assert (headers["X-RateLimit-Remaining"], rate.peek({}, cost=0).decisions[0].remaining) == ("2", 2)
    body.close()


def test_the_outcome_of_a_body_that_starts_late_is_its_status() -> None:
    """A body with a length may start the response when the server iterates it. Its outcome is not known before."""
    rate = limiter("10/minute", key=[], count_when={"status": 401})
    app = RateLimitMiddleware(lambda environ, start: LateStart(start), limiter=rate)  # type: ignore[arg-type, return-value]
    assert Served(app).headers[2] == ("X-RateLimit-Remaining", "10")
    assert rate.peek({}, cost=0).decisions[0].remaining == 10


def test_a_response_read_to_its_end_is_settled_without_close() -> None:
    """The test clients of Flask and Werkzeug read a response without closing it. Its outcome counts."""
    app = Flask("app")
    app.add_url_rule("/login", view_func=lambda: "in", methods=["POST"])
    rate = limiter("2/minute", count_when={"status": 401})
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=rate)  # type: ignore[method-assign]
    client = app.test_client()
    assert [client.post("/login").text for _ in range(5)] == ["in"] * 5


@each("ending", [SystemExit(3), KeyboardInterrupt(), ValueError("broken")])
def test_the_end_of_the_application_releases_its_slot(ending: BaseException) -> None:
    """Shutdown and an error release the slot at once and end the heartbeat of its lease.

    An error is a 500, which does not count here. After a shutdown the outcome is unknown, so the cost is kept.
    """

    def app(environ: Environ, start_response: Any) -> list[bytes]:
        raise ending

    left = [1, 9] if isinstance(ending, Exception) else [1, 8]
    rate = limiter("1 concurrent; 9/minute", count_when={"status": 401}, key=[])
    with pytest.raises(type(ending)):
        Served(RateLimitMiddleware(app, limiter=rate))
    assert [decision.remaining for decision in rate.peek({}, cost=0).decisions] == left
    assert renewed(rate) == 0
    rate.close()


def test_an_invalid_return_value_releases_its_slot() -> None:
    """An application that returns a non-iterable is a 500, which holds no slot."""
    rate = limiter("1 concurrent", key=[])
    with pytest.raises(TypeError):
        Served(RateLimitMiddleware(lambda environ, start: None, limiter=rate))  # type: ignore[arg-type, return-value]
    assert rate.peek({}, cost=0).decisions[0].remaining == 1
    assert renewed(rate) == 0
    rate.close()


def test_a_request_stopped_in_a_queue_holds_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops while a request waits in the queue releases the slot of that request."""
    queue = Rule(name="q", limits="1/minute burst 2", key=[], algorithm={"name": "leaky-bucket", "mode": "queue"})
    rate = Limiter([queue, Rule(name="slots", limits="2 concurrent", key=[])])
    app = RateLimitMiddleware(listing, limiter=rate)

    def stop(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        Served(app)
        monkeypatch.setattr(time, "sleep", lambda delay: os.kill(os.getpid(), signal.SIGUSR1))
        with pytest.raises(SystemExit):
            Served(app)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [decision.remaining for decision in rate.peek({}, cost=0).decisions] == [0, 2]
    rate.close()
