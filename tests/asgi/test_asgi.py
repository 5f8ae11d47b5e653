"""The ASGI middleware changes the header list of the start message and no other message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_checker import Message, Receive, Scope, Send
from calls import BODY, FIELDS, START, asend_bare, http_scope, limited, limiter, names_of, send_bare, sending
from tables import each

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.limits import ADMISSION


@each("kind", ["mqtt", "websocket.extension"])
def test_scopes_of_other_protocols_are_passed_through(kind: str) -> None:
    """The application receives the scope, receive and send objects of an unknown protocol unchanged."""
    received: list[Any] = []

    async def app(*parts: Any) -> None:
        received.extend(parts)

    async def receive() -> Message:
        raise AssertionError("receive was called")

    async def send(message: Message) -> None:
        raise AssertionError("send was called")

    scope = {"type": kind}
    asyncio.run(RateLimitMiddleware(app, limiter=limiter())(scope, receive, send))
    assert [part is original for part, original in zip(received, (scope, receive, send), strict=True)] == [True] * 3
    assert scope == {"type": kind}


@each("kind", ["lifespan", "mqtt"])
def test_errors_for_other_scopes_reach_the_server(kind: str) -> None:
    """The error that an application raises for an unknown protocol reaches the server."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError(scope["type"])

    with pytest.raises(NotImplementedError, match=kind):
        send_bare(limited(app), {"type": kind})


def test_a_request_that_matches_no_rule_is_passed_through() -> None:
    """When no rule applies, receive and the start message stay the same objects. The scope gains a verdict."""
    received: list[Any] = []

    async def app(*parts: Any) -> None:
        received.extend(parts)
        await parts[2](START)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope, receive = http_scope(path="/free"), object()
    guarded = RateLimitMiddleware(app, limiter=limiter(match={"path": "/api"}))
    asyncio.run(guarded(scope, receive, send))  # type: ignore[arg-type]
    assert received[1] is receive
    assert bool(received[0].pop("state")["ratelimit"])
    assert received[0].pop(ADMISSION)
    assert received[0] == scope
    assert sent[0] is START


@each(
    ("headers", "expected"),
    [
        ({}, []),
        ({"headers": None}, []),
        ({"headers": ()}, []),
        ({"headers": ((b"a", b"1"), (b"b", b"2"))}, [(b"a", b"1"), (b"b", b"2")]),
        ({"headers": [[b"a", b"1"]]}, [[b"a", b"1"]]),
        ({"headers": [(b"set-cookie", b"1"), (b"a", b"2"), (b"set-cookie", b"3")]}, None),
        ({"headers": [(b"RateLimit", b"9"), (b"a", b"1"), (b"X-RATELIMIT-LIMIT", b"9")]}, [(b"a", b"1")]),
    ],
)
def test_every_shape_of_header_list_becomes_a_new_list(headers: dict[str, Any], expected: list[Any] | None) -> None:
    """The middleware copies the headers in order into a new list and appends its own fields, which replace others."""
    expected = headers["headers"] if expected is None else expected
    sent = send_bare(limited(sending({"type": "http.response.start", "status": 200, **headers}, BODY)), http_scope())
    assert sent[0]["headers"][: len(expected)] == expected
    assert names_of(sent[0])[len(expected) :] == FIELDS


def test_headers_may_be_a_generator() -> None:
    """The middleware reads a one-shot iterable of headers once and sends all of it."""
    start = {"type": "http.response.start", "status": 200, "headers": ((b"n%d" % i, b"v") for i in range(3))}
    sent = send_bare(RateLimitMiddleware(sending(start, BODY), limiter=limiter()), http_scope())
    assert names_of(sent[0]) == ["n0", "n1", "n2", *FIELDS]


def test_a_stream_sends_one_start_and_each_chunk_at_once() -> None:
    """The middleware does not buffer or delay chunks, and only the start message has headers."""
    chunks = [{"type": "http.response.body", "body": b"%d" % i, "more_body": i < 9} for i in range(10)]
    sent = send_bare(limited(sending(START, *chunks)), http_scope())
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 10
    assert sent[1:] == chunks


def test_send_applies_backpressure_to_the_application() -> None:
    """The application waits in ``send`` until the server accepts the message."""
    order = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in (START, BODY):
            await send(message)
            order.append("app continued")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0)
        order.append("server took it")

    asyncio.run(RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, slow))  # type: ignore[arg-type]
    assert order == ["server took it", "app continued"] * 2


@each(
    "messages",
    [
        [{"type": "http.response.debug", "info": {}}, START, BODY],
        [{"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]}, START, BODY],
        [START, {"type": "http.response.push", "path": "/a.css", "headers": []}, BODY],
        [START, {"type": "http.response.pathsend", "path": "/tmp/file"}],
        [START, {"type": "http.response.zerocopysend", "file": 7, "count": 10}],
        [{**START, "trailers": True}, BODY, {"type": "http.response.trailers", "headers": [(b"a", b"b")]}],
        [START, {"type": "http.response.of_the_future", "value": object()}, BODY],
    ],
)
def test_extension_messages_are_passed_through(messages: list[Message]) -> None:
    """A message of any other type reaches the server as the same object and in the same order."""
    sent = send_bare(limited(sending(*messages)), http_scope())
    assert [s is m or m["type"] == "http.response.start" for s, m in zip(sent, messages, strict=True)] == [True] * len(
        sent
    )
    start = next(message for message in sent if message["type"] == "http.response.start")
    assert names_of(start)[1:] == FIELDS


def test_only_the_application_reads_the_body() -> None:
    """The application receives the body unchanged, and a rejection does not read the body."""

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        first, second = await receive(), await receive()
        await send(START)
        await send({"type": "http.response.body", "body": first["body"] + second["body"]})

    parts = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}]
    guarded = limited(echo, limiter("1/minute"))
    assert send_bare(guarded, http_scope(), parts)[1]["body"] == b"ab"
    assert send_bare(guarded, http_scope(), [])[0]["status"] == 429


@each("error", [ValueError("broken"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)])
def test_errors_of_the_application_reach_the_server(error: BaseException) -> None:
    """Errors, cancellation and exits of the application reach the server unchanged."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    async def caught() -> BaseException | None:
        try:
            await RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, None)  # type: ignore[arg-type]
        except BaseException as raised:
            return raised
        return None

    assert asyncio.run(caught()) is error


def test_an_error_of_send_reaches_the_application() -> None:
    """An error of the server's ``send`` reaches the application first and then the server."""

    async def gone(message: Message) -> None:
        raise OSError("connection lost")

    for rate in (limiter(), limiter("1/minute", cost=lambda _: 2)):
        with pytest.raises(OSError, match="connection lost"):
            asyncio.run(
                RateLimitMiddleware(sending(START, BODY), limiter=rate)(http_scope(), None, gone)  # type: ignore[arg-type]
            )


def test_a_cancelled_request_does_not_affect_the_next() -> None:
    """A cancelled request keeps its consumed cost, and the middleware serves the next request."""

    async def scenario() -> list[int]:
        waiting = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            waiting.set()
            await asyncio.sleep(3600 if scope["path"] == "/slow" else 0)
            await sending(START, BODY)(scope, receive, send)

        guarded = RateLimitMiddleware(app, limiter=limiter())
        slow = asyncio.create_task(asend_bare(guarded, http_scope(path="/slow")))
        await waiting.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        return [(await asend_bare(guarded, http_scope()))[0]["status"] for _ in range(2)]

    assert asyncio.run(scenario()) == [200, 429]


@each(
    ("arguments", "message"),
    [
        ({}, "either limits="),
        ({"limiter": limiter(), "settings": {}}, "either settings"),
        ({"limiter": "memory://"}, "limiter: expected a Limiter; got 'memory://'"),
        ({"limiter": limiter(), "rejection": "429"}, "rejection: expected a function"),
        ({"limiter": limiter(), "features": {"ip": "x"}}, "features\\['ip'\\]: expected a function"),
        ({"limiter": limiter(), "features": {"user": lambda: "x"}}, "of the request; got <lambda>..: too many"),
        ({"limiter": limiter(), "rejection": lambda request: None}, "of the request and the verdict; got <lambda>"),
        ({"settings": limiter()}, "settings: expected the path of a file, a dictionary or Settings; got <"),
        ({"limiter": limiter(), "features": {"user-id": str}}, "features\\['user-id'\\]: expected a feature"),
        (
            {"limiter": limiter(), "trusted_proxy": []},
            "trusted_proxy: unknown argument. Did you mean 'trusted_proxies'",
        ),
        ({"setting": {}}, "setting: unknown argument. Did you mean 'settings'"),
        ({"limiter": limiter(), "trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies\\[0\\]: "),
        ({"limiter": limiter(), "headers": ["x-rate-limit"]}, "headers\\[0\\]: "),
        ({"settings": {"rules": [{"limits": "5/fortnight"}]}}, "rules\\[0\\]: limits: cannot parse"),
        ({"limiter": limiter(key=["tenant"])}, "uses the feature 'tenant', but nothing provides it"),
    ],
)
def test_an_invalid_argument_is_rejected_when_built(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument raises an error when the application starts, and the error names the expected value."""
    with pytest.raises(ConfigError, match=message):
        RateLimitMiddleware(sending(START, BODY), **arguments)
