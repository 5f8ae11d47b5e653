"""What the ASGI middleware owes to the protocol: it changes a header list, and nothing else, and nothing late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_checker import Message, Receive, Scope, Send
from calls import BODY, FIELDS, START, asend_bare, ask, http_scope, limited, limiter, names_of, send_bare, sending

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock


def test_an_allowed_response_gets_the_headers_once_and_stays_what_it_was() -> None:
    """An allowed request reaches the application, and its response gains the header fields and loses nothing."""
    answer = ask(limited(sending(START, BODY)))
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (200, "hello", "text/plain")
    assert answer.headers["x-ratelimit-limit"] == "2"
    assert answer.headers["x-ratelimit-remaining"] == "1"
    assert [name for name in answer.headers if name in FIELDS] == FIELDS
    assert "retry-after" not in answer.headers


def test_a_rejected_request_does_not_reach_the_application() -> None:
    """Beyond the limit the answer is a 429 that says when to come back, and the application is not called."""
    calls = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope)
        await sending(START, BODY)(scope, receive, send)

    guarded = limited(app)
    assert [ask(guarded).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert len(calls) == 2


@pytest.mark.parametrize("kind", ["mqtt", "websocket.extension"])
def test_other_scopes_go_straight_through(kind: str) -> None:
    """Scope, receive and send of a protocol that nobody knows reach the application as the very same objects."""
    given: list[Any] = []

    async def app(*parts: Any) -> None:
        given.extend(parts)

    async def receive() -> Message:
        raise AssertionError("nobody asked for a message")

    async def send(message: Message) -> None:
        raise AssertionError("nobody sent a message")

    scope = {"type": kind}
    asyncio.run(RateLimitMiddleware(app, limiter=limiter())(scope, receive, send))
    assert [part is mine for part, mine in zip(given, (scope, receive, send), strict=True)] == [True] * 3
    assert scope == {"type": kind}


@pytest.mark.parametrize("kind", ["lifespan", "mqtt"])
def test_what_an_application_raises_for_other_scopes_goes_up(kind: str) -> None:
    """An application that does not know a protocol says so to the server, not to the middleware."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError(scope["type"])

    with pytest.raises(NotImplementedError, match=kind):
        send_bare(limited(app), {"type": kind})


def test_without_a_rule_for_a_request_everything_is_handed_on_as_it_is() -> None:
    """Where no rule looks, receive, send and the start message are the same objects; the verdict is new in a scope."""
    given: list[Any] = []

    async def app(*parts: Any) -> None:
        given.extend(parts)
        await parts[2](START)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope, receive = http_scope(path="/free"), object()
    guarded = RateLimitMiddleware(app, limiter=limiter(match={"path": "/api"}))
    asyncio.run(guarded(scope, receive, send))  # type: ignore[arg-type]
    assert [part is mine for part, mine in zip(given[1:], (receive, send), strict=True)] == [True] * 2
    assert bool(given[0].pop("state")["ratelimit"])
    assert given[0] == scope
    assert sent[0] is START


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({}, []),
        ({"headers": None}, []),
        ({"headers": ()}, []),
        ({"headers": ((b"a", b"1"), (b"b", b"2"))}, [(b"a", b"1"), (b"b", b"2")]),
        ({"headers": [[b"a", b"1"]]}, [[b"a", b"1"]]),
        ({"headers": [(b"set-cookie", b"1"), (b"a", b"2"), (b"set-cookie", b"3")]}, None),
    ],
    ids=["missing", "none", "empty", "tuple", "lists", "repeated"],
)
def test_every_shape_of_header_list_becomes_a_new_list(headers: dict[str, Any], kept: list[Any] | None) -> None:
    """Missing, empty, tuple and list headers are kept in order, in a new list, with ours after them."""
    kept = headers["headers"] if kept is None else kept
    sent = send_bare(limited(sending({"type": "http.response.start", "status": 200, **headers}, BODY)), http_scope())
    assert sent[0]["headers"][: len(kept)] == kept
    assert names_of(sent[0])[len(kept) :] == FIELDS


def test_headers_may_come_from_a_generator() -> None:
    """A one-shot iterable of headers is read once and arrives whole."""
    start = {"type": "http.response.start", "status": 200, "headers": ((b"n%d" % i, b"v") for i in range(3))}
    sent = send_bare(RateLimitMiddleware(sending(start, BODY), limiter=limiter()), http_scope())
    assert names_of(sent[0]) == ["n0", "n1", "n2", *FIELDS]


def test_header_fields_of_ours_that_the_application_set_are_replaced() -> None:
    """Fields are replaced, not doubled, whatever their spelling; an application's own Retry-After stays."""
    given = [(b"X-RateLimit-Limit", b"9"), (b"ratelimit", b"x"), (b"retry-after", b"3"), (b"RateLimit-Policy", b"y")]
    start = {"type": "http.response.start", "status": 503, "headers": given}
    sent = send_bare(RateLimitMiddleware(sending(start, BODY), limiter=limiter()), http_scope())
    assert names_of(sent[0]) == ["retry-after", *FIELDS]
    assert dict(sent[0]["headers"])[b"x-ratelimit-limit"] == b"2"
    assert start["headers"] is given
    assert len(given) == 4


def test_a_stream_has_one_start_and_every_chunk_comes_at_once() -> None:
    """Chunks are neither gathered nor delayed, and only the first message carries headers."""
    chunks = [{"type": "http.response.body", "body": b"%d" % i, "more_body": i < 9} for i in range(10)]
    sent = send_bare(limited(sending(START, *chunks)), http_scope())
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 10
    assert sent[1:] == chunks


def test_backpressure_reaches_the_application() -> None:
    """The application waits in ``send`` until the server has taken the message."""
    order = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in (START, BODY):
            await send(message)
            order.append("app went on")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0)
        order.append("server took it")

    asyncio.run(RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, slow))  # type: ignore[arg-type]
    assert order == ["server took it", "app went on"] * 2


@pytest.mark.parametrize(
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
    ids=["debug", "early hint", "push", "pathsend", "zerocopysend", "trailers", "unknown"],
)
def test_messages_of_extensions_pass_as_they_are(messages: list[Message]) -> None:
    """Whatever is not a start message is passed on as the same object, in its place."""
    sent = send_bare(limited(sending(*messages)), http_scope())
    assert [s is m or m["type"] == "http.response.start" for s, m in zip(sent, messages, strict=True)] == [True] * len(
        sent
    )
    start = next(message for message in sent if message["type"] == "http.response.start")
    assert names_of(start)[1:] == FIELDS


def test_the_application_alone_reads_the_body() -> None:
    """The request's body arrives as the server gave it, and a rejection leaves it unread."""

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        first, second = await receive(), await receive()
        await send(START)
        await send({"type": "http.response.body", "body": first["body"] + second["body"]})

    parts = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}]
    guarded = limited(echo, limiter("1/minute"))
    assert send_bare(guarded, http_scope(), parts)[1]["body"] == b"ab"
    assert send_bare(guarded, http_scope(), [])[0]["status"] == 429


def test_a_rule_that_only_watches_does_not_touch_the_response() -> None:
    """With nothing but shadow rules the start message is the application's own object."""
    sent = send_bare(limited(sending(START, BODY), limiter("1/minute", mode="shadow")), http_scope())
    assert sent[0] is START


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)])
def test_what_the_application_raises_goes_up(error: BaseException) -> None:
    """Errors, cancellation and exits of the application reach the server as they are."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    async def caught() -> BaseException | None:
        try:
            await RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, None)  # type: ignore[arg-type]
        except BaseException as raised:
            return raised
        return None

    assert asyncio.run(caught()) is error


def test_a_client_that_has_gone_ends_the_application() -> None:
    """An error of the server's ``send`` reaches the application, and then the server."""

    async def gone(message: Message) -> None:
        raise OSError("connection lost")

    for rate in (limiter(), limiter("1/minute", cost=5)):
        with pytest.raises(OSError, match="connection lost"):
            asyncio.run(
                RateLimitMiddleware(sending(START, BODY), limiter=rate)(http_scope(), None, gone)  # type: ignore[arg-type]
            )


def test_a_cancelled_request_does_not_stop_the_next() -> None:
    """A request that is cancelled halfway has consumed what it consumed, and the middleware goes on."""

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either settings"),
        ({"limiter": limiter(), "settings": {}}, "either settings"),
        ({"limiter": "memory://"}, "limiter: expected a Limiter; got 'memory://'"),
        ({"limiter": limiter(), "rejection": "429"}, "rejection: expected a function"),
        ({"limiter": limiter(), "features": {"ip": "x"}}, "features\\['ip'\\]: expected a function"),
        ({"limiter": limiter(), "features": {"user": lambda: "x"}}, "of the request; got <lambda>..: too many"),
        ({"limiter": limiter(), "rejection": lambda request: None}, "of the request and the verdict; got <lambda>"),
        ({"settings": limiter()}, "settings: expected the path of a file, a dictionary or Settings; got <"),
        ({"limiter": limiter(), "features": {"usr": str}}, "Did you mean 'user'"),
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
def test_what_cannot_work_is_rejected_when_built(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is an error when the application starts, and says what was expected."""
    with pytest.raises(ConfigError, match=message):
        RateLimitMiddleware(sending(START, BODY), **arguments)


def test_an_inner_middleware_checks_the_lists_again() -> None:
    """The outer middleware does not know the user, so the deny list applies inside. No rule counts twice."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        text = str(scope["state"]["ratelimit"].rules).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})

    settings = {"rules": [{"name": "api", "limits": "5/minute"}], "lists": {"deny": {"user": ["eve"]}}}
    rate = Limiter.from_settings(settings, clock=ManualClock(999_960.0))
    inner = RateLimitMiddleware(app, limiter=rate, features={"user": lambda request: request.header("x-user")})
    outer = RateLimitMiddleware(inner, limiter=rate, features={"user": lambda _: None})
    assert ask(outer, headers={"x-user": "eve"}).status_code == 403
    responses = [ask(outer, headers={"x-user": "ann"}) for _ in range(2)]
    assert [each.text for each in responses] == ["('api',)"] * 2
    assert [each.headers["x-ratelimit-remaining"] for each in responses] == ["3", "2"]
