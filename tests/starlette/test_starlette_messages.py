"""A limit on WebSocket messages drops excess messages or closes the connection."""

import asyncio
import contextlib
from typing import Any

import pytest
from calls import ask
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect
from starlette_apps import hello
from tables import each
from websocket_calls import application, connect, echo, kinds

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.http.admission import ADMISSION
from ratelimit_mw.starlette import RateLimitMiddleware, check, exempt, limit, messages
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testmode import limits_off


def test_excess_messages_close_the_connection() -> None:
    """By default the connection closes with "try again later", and the server receives nothing more of the view."""
    codes: list[int] = []

    @messages("2/minute")
    async def view(websocket: Any) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(await websocket.receive_text())
        except WebSocketDisconnect as gone:
            codes.append(gone.code)
            with contextlib.suppress(RuntimeError):
                await websocket.send_text("too late")

    app = application(view)
    assert kinds(connect(app, said="abcd")) == ["accept", "a", "b", 1013]
    assert kinds(connect(app, said="e")) == ["accept", 1013]
    assert codes == [1013, 1013]


def test_excess_messages_are_dropped_with_over_drop() -> None:
    """With ``over="drop"`` the connection stays open, and later messages pass again."""
    clock = ManualClock(1_000_020.0)  # Uses up a full minute

    @messages("2/minute", key=["ip"], over="drop", algorithm="fixed-window")
    async def view(websocket: Any) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                text = await websocket.receive_text()
                clock.advance(30 if text == "wait" else 0)
                await websocket.send_text(text)

    app = application(view, clock=clock)
    assert kinds(connect(app, said=["a", "b", "c", "d"])) == ["accept", "a", "b"]
    clock.advance(60)
    assert kinds(connect(app, said=["wait", "wait", "c", "d", "e"])) == ["accept", "wait", "wait", "c", "d"]


def test_a_cost_function_receives_the_message() -> None:
    """A message costs what the function returns for its text or its bytes. Keys are those of the handshake."""
    app = application(messages("5/minute", cost=len, over="drop")(echo))
    assert kinds(connect(app, said=["abc", "abc", "", "ab", "a"])) == ["accept", "abc", "", "ab"]
    sizes: list[Any] = []

    async def view(websocket: Any) -> None:
        await websocket.accept()
        sizes.extend([len((await websocket.receive()).get("bytes") or b"") for _ in range(2)])

    app = application(messages("5/minute", cost=len)(view))
    sent = connect(app, said=[{"type": "websocket.receive", "bytes": bytes(size)} for size in (4, 2)])
    assert (kinds(sent), sizes) == (["accept", 1013], [4, 0])


def test_a_view_checks_messages_by_a_key_known_after_the_accept() -> None:
    """``check`` counts by a feature of the first message. The request keeps no verdict of each message."""
    kept: list[int] = []

    async def view(websocket: Any) -> None:
        await websocket.accept()
        user = await websocket.receive_text()
        async for text in websocket.iter_text():
            verdict = await check(websocket, text, user=user)
            kept.append(len(websocket.scope[ADMISSION].verdicts))
            await websocket.send_text(f"{verdict.decisions[0].remaining}")

    rules = [
        Rule(name="said", limits="3/minute", key=["user"], match={"view": ""}),
        Rule(name="kept", limits="3/minute", key=["user"], match={"view": ""}, count_when={"status": 101}),
        Rule(name="slots", limits="1 concurrent", key=["user"], match={"view": ""}),
    ]
    app = application(view, *rules)
    assert kinds(connect(app, said=["ann", *["said"] * 4])) == ["accept", "2", "1", "0", 1013]
    assert kinds(connect(app, said=["bob", "said"])) == ["accept", "2"]
    assert kinds(connect(app, said=["ann", *["kept"] * 4])) == ["accept", "2", "1", "0", 1013]
    assert [kinds(connect(app, said=["ann", "slots"])) for _ in range(2)] == [["accept", "0"]] * 2
    assert set(kept[:-2]) == {1}
    assert kept[-2:] == [2, 2]


@each("hides", [False, True])
def test_two_middlewares_count_a_message_once(hides: bool) -> None:
    """The outer middleware counts. When it cannot read the routes, the inner one counts."""
    limiter = Limiter([Rule(name="all", limits="9/minute")], clock=ManualClock(1_000_000.0))
    inner = application(messages("2/minute")(echo), limiter=limiter)

    async def hiding(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    app = RateLimitMiddleware(hiding if hides else inner, limiter=limiter)
    assert kinds(connect(app, said="abc")) == ["accept", "a", "b", 1013]
    assert limiter.peek({"ip": "192.0.2.7", "path": "/ws"}, cost=0).decisions[0].remaining == 8


def test_limits_on_messages_are_decided_together() -> None:
    """Several limits on messages are all or nothing. A limit that closes takes precedence over one that drops."""
    dropping = messages("2/minute", name="each", key=["ip"], over="drop")(echo)
    app = application(messages("3/minute", name="all", key=[])(dropping))
    assert kinds(connect(app, said="abc")) == ["accept", "a", "b"]
    assert kinds(connect(app, said="de", client=("192.0.2.9", 1))) == ["accept", "d", 1013]


def test_handshakes_and_messages_have_separate_limits() -> None:
    """A view may have both. Rules of the file and exemptions by name apply only to handshakes."""
    view = messages("1/minute", name="messages", over="drop")(echo)
    app = application(exempt("file")(limit("2/minute", name="handshakes")(view)), Rule(name="file", limits="1/minute"))
    assert [kinds(connect(app, said="ab")) for _ in range(3)] == [["accept", "a"], ["accept"], [1008]]


def test_a_view_that_is_exempt_has_no_limit_on_messages() -> None:
    """``@exempt`` and limits_off() turn limits on messages off, too."""
    limited = messages("1/minute")(echo)
    app = application([WebSocketRoute("/free", exempt(limited)), WebSocketRoute("/limited", limited)])
    assert kinds(connect(app, "/free", said="abc")) == ["accept", *"abc"]
    with limits_off():
        assert kinds(connect(app, "/limited", said="abc")) == ["accept", *"abc"]


def test_a_queue_delays_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaky-bucket queue delays messages, and so the sender."""
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay: float) -> None:
        delays.append(delay)
        await sleep(0)

    monkeypatch.setattr("ratelimit_mw.asgi.websocket.asyncio.sleep", noted)
    queue = messages("1000/second burst 2", algorithm={"name": "leaky-bucket", "mode": "queue"})
    assert kinds(connect(application(queue(echo)), said="ab")) == ["accept", "a", "b"]
    assert delays == [0.001]


EXPECTED = "over: expected 'close' or 'drop'; got "
NO_OUTCOME = "count_when, count_unless and concurrency limits cannot be used for messages"


@each(
    ("arguments", "message"),
    [
        ({"over": "ignore"}, f"{EXPECTED}'ignore'"),
        ({"over": len}, f"{EXPECTED}<built-in function len>"),
        ({"limits": "5 concurrent"}, rf"@messages at .*py:\d+: {NO_OUTCOME}"),
        ({"count_when": {"status": 500}}, NO_OUTCOME),
        ({"limits": "1/fortnight"}, r"@messages at .*py:\d+: limits"),
    ],
)
def test_an_invalid_limit_on_messages_is_an_error(arguments: dict[str, Any], message: str) -> None:
    """A limit on messages without a meaning raises an error at its decorator."""
    with pytest.raises(ConfigError, match=message):
        messages(**{"limits": "1/s", **arguments})


def test_a_limit_on_messages_of_an_http_view_is_a_mistake() -> None:
    """An HTTP view receives no messages, so it cannot limit them."""
    with pytest.raises(ConfigError, match=r"@messages on .*hello: /page is not a WebSocket route"):
        ask(application([Route("/page", messages("1/s")(hello))]), "/page")


def test_other_messages_are_not_counted() -> None:
    """A message of another type reaches the view without being counted."""

    @messages("1/minute")
    async def view(websocket: Any) -> None:
        await websocket.accept()
        kinds = [(await websocket._receive())["type"] for _ in range(3)]
        await websocket.send_text(" ".join(kinds))

    ping = {"type": "websocket.ping"}
    sent = connect(application(view), said=[ping, ping, "a"])
    assert kinds(sent) == ["accept", "websocket.ping websocket.ping websocket.receive"]
