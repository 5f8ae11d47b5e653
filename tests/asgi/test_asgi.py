"""The ASGI middleware changes the header list of the start message and no other message."""

import asyncio
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgi_checker import Message, Receive, Scope, Send
from calls import (
    BODY,
    CLIENT,
    FIELDS,
    OK,
    START,
    asend_bare,
    http_scope,
    limited,
    limiter,
    names_of,
    send_bare,
    sending,
)
from limiter_ways import renewed
from shared_store import SharedStore
from starlette.routing import WebSocketRoute
from tables import each
from websocket_calls import aconnect, application

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.admission import ADMISSION
from ratelimit_mw.rules.marks import current_admission


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


@each("kind", ["http", "websocket"])
def test_a_request_that_matches_no_rule_is_passed_through(kind: str) -> None:
    """When no rule applies, receive of HTTP and the messages stay the same objects. The scope gains a verdict."""
    received: list[Any] = []

    async def app(*parts: Any) -> None:
        received.extend(parts)
        await parts[2](START)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope, receive = http_scope(path="/free", type=kind), object()
    guarded = RateLimitMiddleware(app, limiter=limiter(match={"path": "/api"}))
    asyncio.run(guarded(scope, receive, send))  # type: ignore[arg-type]
    assert received[1] is receive or kind == "websocket"
    verdict = received[0].pop("state")["ratelimit"]
    assert (bool(verdict), verdict.decisions) == (True, ())
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
        ({"headers": ((name, b"v") for name in (b"a", b"b"))}, [(b"a", b"v"), (b"b", b"v")]),  # which is read once
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


@each("retry", [[], ["retry-after"]])
def test_headers_of_a_429_are_read_once(retry: list[str]) -> None:
    """An application may send them as an iterator, with a 429 of its own or as the response to a rejection."""
    rate = limiter("1/minute")
    headers = iter([(b"cache-control", b"private"), (b"b", b"2")])
    busy = sending({"type": "http.response.start", "status": 429, "headers": headers}, BODY)
    if retry:
        rate.hit({"ip": CLIENT})
    sent = send_bare(limited(busy, rate, rejection=lambda *_: busy), http_scope())
    assert names_of(sent[0]) == ["cache-control", "b", *FIELDS, *retry]


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


def test_an_error_of_send_reaches_the_application() -> None:
    """An error of the server's ``send`` reaches the application first and then the server."""

    async def gone(message: Message) -> None:
        raise OSError("connection lost")

    for rate in (limiter(), limiter("1/minute", cost=lambda _: 2)):
        with pytest.raises(OSError, match="connection lost"):
            asyncio.run(
                RateLimitMiddleware(sending(START, BODY), limiter=rate)(http_scope(), None, gone)  # type: ignore[arg-type]
            )


@each(
    ("arguments", "message"),
    [
        ({"limiter": limiter(), "rejection": "429"}, "rejection: expected a function"),
        ({"limiter": limiter(), "features": {"ip": "x"}}, "features\\['ip'\\]: expected a function"),
        ({"limiter": limiter(), "features": {"user": lambda: "x"}}, "of the request; got <lambda>..: too many"),
        ({"limiter": limiter(), "rejection": lambda request: None}, "of the request and the verdict; got <lambda>"),
        ({"limiter": limiter(), "features": {"user-id": str}}, "features\\['user-id'\\]: expected a feature"),
        (
            {"limiter": limiter(), "trusted_proxy": []},
            "trusted_proxy: unknown argument. Did you mean 'trusted_proxies'",
        ),
        ({"setting": {}}, "setting: unknown argument. Did you mean 'settings'"),
        ({"limiter": limiter(), "trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies\\[0\\]: "),
        ({"limiter": limiter(), "headers": ["x-rate-limit"]}, "headers\\[0\\]: "),
        ({"settings": {"rules": [{"overrides": "view", "limits": "1/s"}]}}, "no decorator has a rule named 'view'"),
        ({"settings": {"rules": [{"limits": "5/fortnight"}]}}, "rules\\[0\\]: limits: cannot parse"),
    ],
)
def test_an_invalid_argument_is_rejected_when_built(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument raises an error when the application starts, and the error names the expected value."""
    with pytest.raises(ConfigError, match=message):
        RateLimitMiddleware(sending(START, BODY), **arguments)


# -- the end of a request --------------------------------------------------------------------------------------


class Stop(BaseException):
    """An error of a server or a library, which is no ``Exception``."""


ENDINGS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), Stop(), ValueError("broken")]


@each("ending", ENDINGS)
def test_the_end_of_the_application_releases_its_slot(ending: BaseException) -> None:
    """Shutdown, cancellation and an error release the slot at once and end the heartbeat of its lease.

    An error is a 500, which does not count here. After a shutdown the outcome is unknown, so the cost is kept.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ending

    async def call() -> None:
        with pytest.raises(type(ending)) as caught:
            await app_limited(http_scope(), None, None)  # type: ignore[arg-type]
        assert caught.value is ending

    left = [1, 9] if isinstance(ending, Exception) else [1, 8]
    rate = limiter("1 concurrent; 9/minute", count_when={"status": 401})
    app_limited = RateLimitMiddleware(app, limiter=rate)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(call())
    finally:
        loop.close()
    assert [decision.remaining for decision in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions] == left
    assert renewed(rate) == 0
    rate.close()


def test_a_request_without_a_response_keeps_its_cost() -> None:
    """Applications such as Quart send nothing to a client that has left, so the outcome is not known."""
    rate = limiter("1 concurrent; 9/minute", count_when={"status": 401})
    assert asyncio.run(asend_bare(RateLimitMiddleware(sending(), limiter=rate), http_scope())) == []
    assert [decision.remaining for decision in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions] == [1, 8]
    rate.close()


def test_a_rejection_that_cannot_be_sent_releases_its_slot() -> None:
    """The view has raised the rejection, and the client is gone."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        Limiter([Rule(limits="1/hour")]).hit({}, cost=2).raise_for_limit()

    rate = limiter("1 concurrent")
    call = RateLimitMiddleware(app, limiter=rate)(http_scope(), AsyncMock(), AsyncMock(side_effect=OSError))
    with pytest.raises(OSError, match=r"^$"):
        asyncio.run(call)  # type: ignore[arg-type]
    assert rate.peek({"ip": "192.0.2.7"}).allowed
    rate.close()


def test_a_request_that_is_cancelled_while_it_ends_has_an_event() -> None:
    """The store gets the slot back, too."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sending(START, BODY)(scope, receive, send)
        task.cancel()  # at the next await, for the store

    async def call() -> None:
        nonlocal task
        task = asyncio.ensure_future(limited_app(http_scope(), AsyncMock(), AsyncMock()))  # type: ignore[arg-type]
        with pytest.raises(asyncio.CancelledError):
            await task
        await rate.aclose()

    task: Any = None
    events: list[Any] = []
    rate = Limiter([Rule(limits="1 concurrent")], SharedStore(), observers=[events.append])
    limited_app = RateLimitMiddleware(app, limiter=rate)
    asyncio.run(call())
    assert ([event.outcome for event in events], rate.peek({"ip": "192.0.2.7"}).allowed) == (["allowed"], True)
    rate.close()


def test_a_closed_coroutine_releases_its_slot() -> None:
    """It can no longer await the store, so the slot is returned by a blocking call."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)

    rate = limiter("1 concurrent")
    call: Any = RateLimitMiddleware(app, limiter=rate)(http_scope(), None, None)  # type: ignore[arg-type]
    copy_context().run(call.send, None)  # the context of a task, as on an event loop
    assert rate.peek({"ip": "192.0.2.7"}).allowed is False
    rate.waits = True
    call.close()
    assert rate.peek({"ip": "192.0.2.7"}).allowed
    rate.close()


@each("fails", [False, True])
def test_a_request_is_current_until_its_end(fails: bool) -> None:
    """The request of the caller in the same task is current again, even after an error. So it is of a WebSocket."""
    found: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(current_admission.get())
        if fails:
            raise ValueError("of the application")
        await OK(scope, receive, send)

    async def view(websocket: Any) -> None:
        found.append(current_admission.get())
        await websocket.accept()

    async def calls() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="of the application") if fails else nullcontext():
                await asend_bare(limited(app), http_scope())
            assert current_admission.get() is None
        await aconnect(application([WebSocketRoute("/ws", view)]), "/ws", [])
        assert current_admission.get() is None

    asyncio.run(calls())
    assert len({id(request) for request in found} - {id(None)}) == 3


# -- the checker of these tests --------------------------------------------------------------------------------
