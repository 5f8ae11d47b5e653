"""The code of a streamed response runs in its request: it may check, settle, and call limited helpers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import flask
import flask_calls
import pytest
from calls import ask
from django.core.handlers.asgi import ASGIHandler
from django.http import StreamingHttpResponse
from django.urls import path
from django_calls import project
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette_apps import application
from wsgi_calls import HEADERS, Served

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw import django as in_django
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw import wsgi as in_wsgi
from ratelimit_mw.testing import ManualClock

RULES = [
    Rule(name="tokens", limits="1000/minute", cost=100),
    Rule(name="busy", limits="1 concurrent", match={"view": ""}),
]
WHO = {"ip": "192.0.2.7"}


class Stream:
    """Says in a stream what its checks decide."""

    def __init__(self) -> None:
        self.limiter = Limiter(RULES, clock=ManualClock(1_000_000.0))
        self.helper = in_flask.limit("1/minute", name="helper", unrouted=True)(lambda: None)
        self.ahelper = in_starlette.limit("1/minute", name="helper", unrouted=True)(_nothing)

    def say(self, check: Callable[[str], Any], settle: Callable[[str, int], Any]) -> Iterator[str]:
        """In a thread, and without the request of the framework."""
        try:
            for step in (lambda: check("busy"), lambda: check("busy"), self.helper, self.helper):
                try:
                    step()
                    yield "yes "
                except RateLimitExceeded:
                    yield "no "
        finally:
            settle("tokens", 150)

    async def asay(self, request: Any, module: Any) -> AsyncIterator[str]:
        """On an event loop."""
        check = module.acheck if hasattr(module, "acheck") else module.check
        for step in (lambda: check(request, "busy"), lambda: check(request, "busy"), self.ahelper, self.ahelper):
            try:
                await step()
                yield "yes "
            except RateLimitExceeded:
                yield "no "
        await check.settle(request, "tokens", 150)


async def _nothing() -> None:
    pass


def by_flask(stream: Stream) -> str:
    """With the context of the request. The test client closes the response."""

    def view() -> flask.Response:
        words = stream.say(in_flask.check, in_flask.check.settle)
        return flask.Response(flask.stream_with_context(words))

    return flask_calls.ask(flask_calls.app_of(stream.limiter, {"/": view})).text


def by_flask_alone(stream: Stream) -> str:
    """Without that context, helpers and the verdict work. A thread checks in a copy of it."""

    def view() -> flask.Response:
        verdict = flask.g.ratelimit
        check = flask.copy_current_request_context(lambda rule: in_flask.check(rule))
        return flask.Response(stream.say(check, lambda rule, cost: verdict[rule].settle(cost)))

    return flask_calls.ask(flask_calls.app_of(stream.limiter, {"/": view})).text


def by_wsgi(stream: Stream) -> str:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        check, settle = in_wsgi.check, in_wsgi.check.settle
        words = stream.say(lambda rule: check(environ, rule), lambda rule, cost: settle(environ, rule, cost))
        return (word.encode() for word in words)

    return Served(in_wsgi.RateLimitMiddleware(app, limiter=stream.limiter)).body.decode()


def by_django(stream: Stream) -> str:
    def view(request: Any) -> StreamingHttpResponse:
        check, settle = in_django.check, in_django.check.settle
        words = stream.say(lambda rule: check(request, rule), lambda rule, cost: settle(request, rule, cost))
        return StreamingHttpResponse(words)

    with project(stream.limiter, path("", view)) as served:
        return served.ask("/").getvalue().decode()


def by_async_django(stream: Stream) -> str:
    async def view(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(stream.asay(request, in_django))

    with project(stream.limiter, path("", view)):
        return ask(ASGIHandler()).text


def by_starlette(stream: Stream) -> str:
    async def view(request: Any) -> StreamingResponse:
        return StreamingResponse(stream.asay(request, in_starlette))

    return ask(application([Route("/", view)], limiter=stream.limiter)).text


SERVED = [by_flask, by_flask_alone, by_wsgi, by_django, by_async_django, by_starlette]


@pytest.mark.parametrize("serve", SERVED)
def test_a_stream_runs_in_its_request(serve: Callable[[Stream], str]) -> None:
    """Its slots are held until it ends, its helpers are decided, and its true cost is settled."""
    stream = Stream()
    assert serve(stream) == "yes no yes no "
    assert stream.limiter.peek(WHO, cost=0).decisions[0].remaining == 850
    busy = stream.limiter.rules.plan_named("busy", None)
    assert stream.limiter.decide(busy, WHO, consume=False)


def test_a_stream_that_is_closed_early_returns_its_slots() -> None:
    """The server closes it when its client leaves."""
    stream = Stream()

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        for _ in range(9):
            in_wsgi.check(environ, "busy")
            yield b"word"

    limited = in_wsgi.RateLimitMiddleware(app, limiter=stream.limiter)
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
