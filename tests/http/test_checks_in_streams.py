"""The code of a streamed response runs in its request: it may check and settle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flask
import flask_calls
from wsgi_calls import HEADERS, Served

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw import flask as in_flask
from ratelimit_mw import wsgi as in_wsgi
from ratelimit_mw.testing import ManualClock

RULES = [
    Rule(name="tokens", limits="1000/minute", cost=100),
    Rule(name="busy", limits="1 concurrent", match={"view": ""}),
]
WHO = {"ip": "192.0.2.7"}


def test_a_stream_of_flask_may_run_without_its_context() -> None:
    """The verdict works. A thread checks in a copy of the context."""
    limiter = Limiter(RULES, clock=ManualClock(1_000_000.0))

    def view() -> flask.Response:
        verdict = flask.g.ratelimit
        check = flask.copy_current_request_context(lambda rule: in_flask.check(rule))

        def parts() -> Iterator[str]:
            try:
                for _ in range(2):
                    try:
                        check("busy")
                        yield "yes "
                    except RateLimitExceeded:
                        yield "no "
            finally:
                verdict["tokens"].settle(150)

        return flask.Response(parts())

    assert flask_calls.ask(flask_calls.app_of(limiter, {"/": view})).text == "yes no "
    assert limiter.peek(WHO, cost=0).decisions[0].remaining == 850


def test_a_stream_that_is_closed_early_returns_its_slots() -> None:
    """The server closes it when its client leaves."""
    limiter = Limiter(RULES, clock=ManualClock(1_000_000.0))

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        for _ in range(9):
            in_wsgi.check(environ, "busy")
            yield b"word"

    limited = in_wsgi.RateLimitMiddleware(app, limiter=limiter)
    assert [Served(limited, chunks=1).body for _ in range(2)] == [b"word"] * 2


def test_a_slot_of_a_stream_is_held_after_its_outcome_is_settled() -> None:
    """The outcome of a stream is settled before its first bytes are sent, its slots are returned when it is closed."""
    failed = Rule(name="failed", limits="9/minute", count_when={"status": 401})
    limiter = Limiter([RULES[1], failed], clock=ManualClock(1_000_000.0))
    busy = limiter.rules.plan_named("busy", None)

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        yield b"first"
        in_wsgi.check(environ, "busy")
        assert not limiter.decide(busy, WHO, consume=False)
        yield b"last"

    assert Served(in_wsgi.RateLimitMiddleware(app, limiter=limiter)).body == b"firstlast"
    assert limiter.decide(busy, WHO, consume=False)
