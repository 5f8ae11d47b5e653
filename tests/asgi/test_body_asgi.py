"""Rules on body fields under ASGI leave the body that the application receives unchanged."""

import asyncio
import gc
import json
from typing import Any

import pytest
from asgi_checker import App, Message, Receive, Scope, Send
from body_clients import (
    ANN,
    DISCONNECT,
    LIMIT,
    Client,
    Reader,
    chunks,
    post,
    remaining,
    settings,
    statuses,
    with_middleware,
)
from calls import BODY, OK, START, http_scope, limited, limiter, on_loop, send_bare, sending
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.asgi.body import ReadAhead
from ratelimit_mw.asgi.middleware import RateLimitMiddleware
from ratelimit_mw.asgi.request import BODY as READ
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.http.body import body_feature
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.testing import ManualClock

# -- counts ------------------------------------------------------------------------------------------------


def test_invalid_bodies_share_one_count() -> None:
    """So do one of two content types, and one whose client has left."""
    invalid = (post(), chunks(b"{"))
    types = [(b"content-type", b"application/json; a=b"), (b"content-type", b"text/plain")]
    for request in (
        (http_scope(method="POST", headers=types), chunks(ANN)),
        (post(), [*chunks(ANN, more=True), DISCONNECT]),
    ):
        assert statuses(with_middleware(Reader()), request, invalid, (post(), chunks(ANN))) == [200, 429, 200]


@each("is_broken_off", [False, True])
def test_an_upload_is_no_time_of_a_request_at_an_adaptive_limit(
    responses: list[tuple[int, int | None]], is_broken_off: bool
) -> None:
    """It takes as long as its client wants, and so does a wait for its disconnect in the middle.

    The place is held meanwhile, and the time of the application counts. A wait for a disconnect after it counts, too.
    """
    responses.clear()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in messages[:2]:
            await receive()
            clock.advance(0.1)
        assert [len(each.requests) for each in rated.adaptive.states().values()] == [1]
        if not is_broken_off:
            await receive()
        await OK(scope, receive, send)

    async def upload() -> Message:
        clock.advance(10)
        return next(sent)

    end: Message = {"type": "http.request", "body": b"a", "more_body": False}
    left: Message = {"type": "http.disconnect"}
    messages = [{**end, "more_body": True}, *([left] if is_broken_off else [end, left])]
    sent = iter(messages)
    clock = ManualClock(1_000_000.0)
    rated = Limiter([Rule(name="api", limits="adaptive 5..200 concurrent", target="250ms", key=[])], clock=clock)
    asyncio.run(RateLimitMiddleware(app, limiter=rated)(http_scope(method="POST"), upload, Client().send))
    assert responses == [(200_000 if is_broken_off else 10_200_000, 200)]


# -- reads of the body -------------------------------------------------------------------------------------


def count_reads(scope: Scope, limited_app: App) -> int:
    """Return how many messages the middleware receives."""

    async def run() -> int:
        client = Client(*chunks(ANN))
        await limited_app(scope, client.receive, client.send)
        return client.receive_calls

    return asyncio.run(run())


def test_only_a_rule_that_needs_it_reads_the_body() -> None:
    """The middleware reads none for a rule that does not match, and for a feature that your function provides."""
    rules = [
        {"name": "login", "match": {"path": "/login"}, "key": ["json:user"], "limits": "1/minute"},
        {"name": "all", "key": [], "limits": "9/minute"},
    ]
    app = RateLimitMiddleware(OK, settings={"rules": rules})
    assert [count_reads(post(path=path), app) for path in ("/login", "/other")] == [1, 0]
    own = dict.fromkeys(("json:user", "email"), lambda request: "one")
    assert count_reads(post(), RateLimitMiddleware(OK, settings=settings([*own]), features=own)) == 0


def test_two_middlewares_read_once() -> None:
    """The inner middleware reuses the body of the outer one, and the application receives the body once."""
    app = Reader()
    both = with_middleware(with_middleware(app, limits="5/minute"), limits="7/minute")
    assert send_bare(both, post(), chunks(ANN, b" ", b""))[0]["status"] == 200
    assert app.body == ANN + b" "
    inner: Any = both.app
    assert (remaining(both.limiter, "ann"), remaining(inner.limiter, "ann")) == (6, 4)


# -- the body of the application ---------------------------------------------------------------------------


def test_a_strict_server_and_application_see_no_difference() -> None:
    """The middleware receives no messages that the application does not receive, and changes no scope of others."""
    app = limited(Reader(), Limiter.from_settings(settings(limits="9/minute"), clock=ManualClock(1.0)))
    for messages in (chunks(ANN), chunks(b"{", b'"user":', b'"ann"}'), chunks(b"x" * LIMIT, b"y", b"z")):
        assert send_bare(app, post(), messages)[0]["status"] == 200


@each(
    "messages",
    [
        chunks(ANN),
        chunks(b""),
        chunks(b"{", b'"user"', b"", b':"ann"}', b""),
        [{"type": "http.request"}],
        [{"type": "http.request", "more_body": True}, {"type": "http.request", "body": ANN}],
        chunks(b"x" * (LIMIT + 1)),
        chunks(b"x" * LIMIT, b"y", b"z" * LIMIT),
        [*chunks(ANN, more=True), DISCONNECT],
        [DISCONNECT],
        [{"type": "http.surprise"}],
    ],
)
def test_the_application_receives_the_same_messages(messages: list[Message]) -> None:
    """Valid and invalid bodies reach the application as the same objects in the same order, then later messages."""
    app = Reader(beyond=1)
    expected = [*messages, {"type": "http.disconnect", "after": True}]
    limited_app = with_middleware(app)
    assert send_bare(limited_app, post(), list(expected))[0]["status"] == 200
    assert len(app.received) == len(expected)
    assert all(received is message for received, message in zip(app.received, expected, strict=True))


def test_a_body_in_single_bytes_uses_bounded_memory() -> None:
    """The middleware joins many small messages. Every byte arrives, in fewer messages."""
    app = Reader()
    content = json.dumps({"user": "x" * 1000}).encode()
    single = [bytes([byte]) for byte in content]
    assert statuses(with_middleware(app), (post(), chunks(*single)), (post(), chunks(content))) == [200, 429]
    assert app.body == content
    assert len(app.received) <= 64
    repeated = Reader()
    statuses(with_middleware(repeated), (post(), [*chunks(*single, more=True), DISCONNECT]))
    assert (repeated.body, repeated.received[-1]) == (content, DISCONNECT)


def test_a_rejection_application_may_read_the_body() -> None:
    app = Reader()
    rejected = RateLimitMiddleware(Reader(), settings=settings(), rejection=lambda request, verdict: app)
    statuses(rejected, (post(), chunks(ANN)), (post(), chunks(ANN, b" ")))
    assert app.body == ANN + b" "


@on_loop
async def test_an_error_of_receive_reaches_the_application() -> None:
    """The application sees an error of ``receive`` at the point where the error occurs in the stream."""
    client = Client(*chunks(b"{", more=True), OSError("connection lost"))
    with pytest.raises(OSError, match="connection lost"):
        await with_middleware(Reader())(post(), client.receive, client.send)


# -- settings ----------------------------------------------------------------------------------------------


@each(
    ("options", "message"),
    [
        ({"body_limit": 0}, 'body_limit: expected a size such as "64KiB", from 1 byte to 16MiB; got 0'),
        *(({"body_limit": wrong}, "body_limit: expected a size") for wrong in ("17MiB", "64 kibi", "-1", "")),
        ({"body_timeout": 0}, "body_timeout: expected a duration above 0"),
        ({"body_timeout": "soon"}, "body_timeout: expected a duration"),
    ],
)
def test_an_invalid_body_setting_stops_the_start(options: dict[str, Any], message: str) -> None:
    """The file and the middleware argument raise the same error."""
    expect_error(message, with_middleware, OK, **options)
    expect_error(message, RateLimitMiddleware, OK, limiter=limiter(), **options)


@each(("text", "size"), [("1 MB", 1_000_000), ("16mib", 2**24), ("20", 20), (7, 7), ("9b", 9)])
def test_sizes_are_bytes_or_a_number_with_a_unit(text: str | int, size: int) -> None:
    assert Limiter.from_settings({"body_limit": text}).settings.body_limit == size


def test_an_email_is_in_the_field_of_this_name_or_of_another() -> None:
    """The email of a key is normalized in both."""
    for key in ("email", "email:field:user.mail"):
        app = with_middleware(Reader(), key=[key])
        bodies = [{"user": {"mail": f"Ann{i}@x.org"}, "email": f"bob{i}@x.org"} for i in (1, 2)]
        bodies.append({"user": {"mail": "ANN1@x.org"}, "email": " Bob1@x.org"})
        requests = [(post(), chunks(json.dumps(each).encode())) for each in bodies]
        assert statuses(app, *requests) == [200, 200, 429], key


def test_a_body_that_was_not_read_is_an_error() -> None:
    """An adapter that does not read the body raises an error instead of skipping the limit. A WebSocket has no body."""
    read = body_feature("json:id", LIMIT)
    assert read is not None
    with pytest.raises(ConfigError, match=r"reads bodies only for the rules that match .* by its name in the key"):
        read(ASGIRequest(http_scope()))
    assert ASGIRequest({**http_scope(), READ: b"x"}).body(LIMIT) == b"x"
    assert ASGIRequest({"type": "websocket", "method": "GET"}).body(LIMIT) is None


# -- bodies that arrive slowly, or whose request is cancelled --------------------------------------------------


@on_loop
async def test_a_slow_body_times_out_and_still_arrives_whole() -> None:
    """The body counts as invalid. The application receives the pending message, which is requested once."""
    first, last = chunks(b'{"user":', b'"ann"}')
    client, app = Client(first, None, last), Reader()
    limited_app = with_middleware(app, body_timeout="10ms")
    call = asyncio.ensure_future(limited_app(post(), client.receive, client.send))
    while not app.received:  # the middleware waits no longer
        await asyncio.sleep(0.001)
    client.go_on()
    await call
    assert [message is sent for message, sent in zip(app.received, (first, last), strict=True)] == [True, True]
    assert [remaining(limited_app.limiter, user) for user in ("ann", INVALID)] == [1, 0]
    assert (client.status, client.receive_calls, client.cancelled) == (200, 2, 0)


@on_loop
async def test_a_cancelled_read_of_the_application_loses_no_message() -> None:
    """After a timeout of its own read, the application receives each message exactly once."""
    first, last = chunks(b"{", b"}")
    client = Client(first, None, last, DISCONNECT)
    received: list[Message] = []

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receive(), 0.001)
        client.go_on()
        received.append(await receive())
        received.append(await receive())
        await OK(scope, receive, send)

    await with_middleware(impatient, body_timeout="10ms")(post(), client.receive, client.send)
    assert received == [first, last, DISCONNECT]
    assert (client.receive_calls, client.cancelled) == (3, 0)


@on_loop
async def test_two_readers_never_receive_the_same_message() -> None:
    """A response may stream while it listens for a disconnect. Each message goes to one reader."""
    first, last = chunks(b"{", b"}")
    client = Client(first, None, last, DISCONNECT)
    received: list[Message] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        tasks = [asyncio.create_task(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        client.go_on()
        received.extend(await asyncio.gather(*tasks))
        await OK(scope, receive, send)

    await with_middleware(listening, body_timeout="10ms")(post(), client.receive, client.send)
    assert sorted(map(repr, received)) == sorted(map(repr, [first, last, DISCONNECT]))


@on_loop
async def test_an_unused_read_is_cancelled() -> None:
    """An application that responds without reading leaves no task behind, whether it returns or raises."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    for app in (sending(START, BODY), failing):
        client = Client(*chunks(b"{", more=True), None, OSError("too late"))
        limited_app = with_middleware(app, body_timeout="10ms")
        with pytest.raises(ValueError, match="broken") if app is failing else pytest.MonkeyPatch.context():
            await limited_app(post(), client.receive, client.send)
        await asyncio.sleep(0)
        assert client.cancelled == 1
    stubborn = Stubborn(*chunks(b"{", more=True), None)
    await with_middleware(sending(START, BODY), body_timeout="10ms")(post(), stubborn.receive, stubborn.send)
    await asyncio.sleep(0)
    assert stubborn.cancelled == 1
    gc.collect()
    assert reported == []
    assert len(asyncio.all_tasks()) == 1


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("broken")


class Stubborn(Client):
    """A server that turns a cancelled read into an error of its own."""

    async def receive(self) -> Message:
        try:
            return await super().receive()
        except asyncio.CancelledError:
            raise OSError("cancelled") from None


@on_loop
async def test_a_request_cancelled_during_its_body_leaves_no_task() -> None:
    """When the server cancels the request, the read of the body ends, too."""
    client = Client(*chunks(b"{", more=True), None)
    request = asyncio.create_task(with_middleware(Reader())(post(), client.receive, client.send))
    while client.receive_calls < 2:
        await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.sleep(0)
    assert (client.cancelled, client.sent) == (1, [])


@on_loop
async def test_a_dripping_body_has_one_timeout() -> None:
    """The timeout covers the whole body, not each message, so slow drips do not keep the body open."""
    reads = 0

    async def receive() -> Message:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.002)
        return {"type": "http.request", "body": b" ", "more_body": True}

    ahead = ReadAhead(receive, LIMIT, 20_000)
    assert await ahead.read() is INVALID
    ahead.close()
    assert 1 <= reads <= 11
