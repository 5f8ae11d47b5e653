"""A WebSocket handshake counts as a GET request, and a rejection comes before the connection is accepted."""

import asyncio
import contextlib
from typing import Any

import pytest
from calls import ask, http_scope, sending
from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette_apps import hello
from tables import each
from websocket_calls import DENIAL, application, connect, echo, kinds

from ratelimit_mw import Limiter, MissingMiddlewareError, Rejection, Rule
from ratelimit_mw.starlette import RateLimitExceeded, RateLimitMiddleware, check, limit, messages, usage
from ratelimit_mw.testing import ManualClock


def test_a_handshake_counts_with_get_requests() -> None:
    """HTTP and WebSocket requests of a path share a count, and the accept message has the rate limit headers."""

    async def page(request: Any) -> Any:
        return PlainTextResponse("page")

    app = application([Route("/ws", page), WebSocketRoute("/ws", echo)], Rule(limits="2/minute", match={"path": "/ws"}))
    accepted = connect(app, said=["a"])
    assert kinds(accepted) == ["accept", "a"]
    assert dict(accepted[0]["headers"])[b"x-ratelimit-remaining"] == b"1"
    assert ask(app, "/ws").status_code == 200
    assert kinds(connect(app)) == [1008]
    assert ask(app, "/ws").status_code == 429


def test_requests_and_handshakes_of_a_path_are_never_confused() -> None:
    """An HTTP request of any method, even "websocket", leaves the rules of a view to its handshakes, in any order."""
    routes = [Route("/ws", hello), WebSocketRoute("/ws", echo, name="chat")]
    for first in ("GET", "websocket", "handshake"):
        app = application(routes, Rule(limits="1/minute", match={"view": "chat"}))
        _ = kinds(connect(app)) if first == "handshake" else ask(app, "/ws", first)
        assert [kinds(connect(app))[0] for _ in range(2)] == [1008 if first == "handshake" else "accept", 1008]
        assert [ask(app, "/ws", method=method).status_code for method in ("GET", "websocket")] == [200, 405]


def test_a_rejected_handshake_has_a_full_response_with_the_extension() -> None:
    """With the denial-response extension, the client gets the status, headers and body of the rejection."""
    app = application(echo, Rule(name="ws", limits="1/minute"))
    connect(app)
    start, body = connect(app, extensions=DENIAL)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"60"
    assert headers[b"ratelimit"] == b'"ws";r=0;t=60'
    assert body["type"] == "websocket.http.response.body"
    assert b'"violated-policies": ["ws"]' in body["body"]


def test_a_rejected_handshake_receives_the_connect_event_first() -> None:
    """The middleware receives the connect event before it sends, as servers require, and does not call the view."""
    called: list[Any] = []

    async def view(websocket: Any) -> None:
        called.append(websocket)

    app = application(view, Rule(limits="1/minute", cost=lambda _: 2))
    events: list[str] = []

    async def receive() -> Any:
        events.append("connect")
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        events.append(message["type"])

    asyncio.run(app(http_scope(type="websocket", path="/ws"), receive, send))
    assert (events, called) == (["connect", "websocket.close"], [])


@each("kind", ["rejection", "starlette", "asgi"])
def test_a_custom_rejection_applies_to_handshakes(kind: str) -> None:
    """The custom rejection of requests rejects handshakes, too, with WebSocket messages."""
    start = {"type": "http.response.start", "status": 503, "headers": [(b"x-own", b"1")]}
    rejections: dict[str, Any] = {
        "rejection": lambda request, verdict: Rejection(503, [("x-own", "1")], b"own"),
        "starlette": lambda request, verdict: PlainTextResponse("own", status_code=503, headers={"x-own": "1"}),
        "asgi": lambda request, verdict: sending(start, {"type": "http.response.body", "body": b"own"}),
    }
    app = application(echo, Rule(limits="1/minute", cost=lambda _: 2), rejection=rejections[kind])
    sent = connect(app, extensions=DENIAL)
    assert [message["type"].partition("http")[0] for message in sent] == ["websocket."] * 2
    assert (sent[0]["status"], sent[1]["body"]) == (503, b"own")
    assert {b"x-own", b"ratelimit-policy"} <= {name for name, _ in sent[0]["headers"]}


def test_a_handler_for_http_requests_is_not_called_for_handshakes() -> None:
    """A handler that returns HTTP responses receives no WebSocket."""

    async def handler(request: Any, error: Any) -> Any:
        raise AssertionError("never called")

    app = application(echo, Rule(limits="1/minute", cost=lambda _: 2))
    app.add_exception_handler(RateLimitExceeded, handler)
    assert connect(app, extensions=DENIAL)[0]["status"] == 429


def test_websocket_views_can_be_decorated() -> None:
    """WebSocket functions and classes are limited at their routes, even below mounts."""

    @limit("1/minute", key=["path:room"])
    async def room(websocket: Any) -> None:
        await echo(websocket)

    @limit("1/minute")
    class Room(WebSocketEndpoint):
        encoding = "text"

    app = application([Mount("/rooms", routes=[WebSocketRoute("/{room}", room)]), WebSocketRoute("/class", Room)])
    events = [kinds(connect(app, path)) for path in ("/rooms/a", "/rooms/b", "/rooms/a", "/class", "/class")]
    assert events == [["accept"], ["accept"], [1008], ["accept"], [1008]]


def test_a_websocket_view_without_the_middleware_does_not_run() -> None:
    """A limited WebSocket view without the middleware raises an error."""
    for mark in (limit("1/minute"), messages("1/minute")):
        with pytest.raises(MissingMiddlewareError):
            connect(Starlette(routes=[WebSocketRoute("/ws", mark(echo))]))


@each("mark", [limit("1/minute"), messages("1/minute")])
def test_a_hidden_limit_is_an_error_with_its_reason(mark: Any) -> None:
    """No limit of a handshake or of its messages goes missing behind a decorator without ``functools.wraps``."""
    marked = mark(echo)

    async def hiding(websocket: Any) -> None:
        await marked(websocket)

    with pytest.raises(MissingMiddlewareError, match=r"echo is limited .* functools\.wraps"):
        connect(application(hiding, Rule(limits="9/minute")))


def limiter_of(limits: str, **rule: Any) -> Limiter:
    return Limiter([Rule(name="ws", limits=limits, **rule)], clock=ManualClock(1_000_000.0))


def left(limiter: Limiter) -> int:
    return limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining


def test_a_slot_is_held_until_the_connection_ends() -> None:
    """A limit on concurrent connections counts a connection from its handshake to its end, however it ends."""
    limiter = limiter_of("1 concurrent")
    results: list[int] = []

    async def view(websocket: Any) -> None:
        await websocket.accept()
        results.append(left(limiter))
        if websocket.query_params:
            raise ValueError("broken")

    app = application(view, limiter=limiter)
    connect(app)
    with pytest.raises(ValueError, match="broken"):
        connect(app, query_string=b"x=1")
    assert (results, left(limiter)) == ([0, 0], 1)


@each(("outcome", "remaining"), [("accept", 1), ("accept close", 1), ("close", 0), ("deny", 0)])
def test_only_named_outcomes_count(outcome: str, remaining: int) -> None:
    """A rule for failures counts only a handshake that the view rejects."""

    async def view(websocket: Any) -> None:
        if outcome == "deny":
            await websocket.receive()
            await PlainTextResponse("no", status_code=403)(websocket.scope, websocket.receive, websocket._send)
        else:
            for step in outcome.split():
                await getattr(websocket, step)()

    limiter = limiter_of("1/minute", count_when={"status": 403})
    connect(application(view, limiter=limiter), extensions=DENIAL)
    assert left(limiter) == remaining


@each("marks", [True, False])
def test_a_view_marks_the_connection_that_counts(marks: bool) -> None:
    """The view marks it at any time, and the cost is reserved until the connection ends."""
    seen: list[int] = []

    async def view(websocket: Any) -> None:
        await websocket.accept()
        seen.append(left(limiter))
        if marks:
            websocket.state.ratelimit["ws"].count()

    limiter = limiter_of("1/minute", count_when={"marked": True})
    app = application(view, limiter=limiter)
    connect(app)
    assert seen == [0]
    assert kinds(connect(app))[0] == (1008 if marks else "accept")


def test_a_connection_is_decided_once_by_two_middlewares() -> None:
    """The same limiter outside and inside consumes once per handshake."""
    limiter = limiter_of("2/minute")
    outer = application([Mount("/in", app=application(echo, limiter=limiter))], limiter=limiter)
    assert [kinds(connect(outer, "/in/ws")) for _ in range(3)] == [["accept"], ["accept"], [1008]]


@each(("steps", "expected"), [([], [1008]), (["receive"], [1008]), (["accept"], ["accept", 1013])])
def test_a_rejection_raised_by_a_view_closes_the_connection(steps: list[str], expected: list[Any]) -> None:
    """It rejects the handshake, or closes an accepted connection. It waits for no message of the client."""
    own = Limiter([Rule(name="own", limits="1/hour")])
    received: list[str] = []

    async def view(websocket: Any) -> None:
        for step in steps:
            await getattr(websocket, step)()
        own.hit({}, cost=2).raise_for_limit()

    app = application(view, Rule(limits="9/minute"))

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def receive_noted() -> Any:
            message = await receive()
            received.append(message["type"])
            return message

        await app(scope, receive_noted, send)

    assert kinds(connect(noting)) == expected
    assert received == ["websocket.connect"]


def test_a_client_that_is_gone_before_its_connection_closes_keeps_no_slot() -> None:
    """The server raises an error, after a view has raised a rejection."""

    async def view(websocket: Any) -> None:
        await websocket.accept()
        Limiter([Rule(limits="1/hour")]).hit({}, cost=2).raise_for_limit()

    app = application(view, Rule(limits="1 concurrent"))

    async def lost(scope: Any, receive: Any, send: Any) -> None:
        async def send_or_fail(message: Any) -> None:
            if message["type"] == "websocket.close":
                raise OSError
            await send(message)

        await app(scope, receive, send_or_fail)

    with pytest.raises(OSError, match=r"^$"):
        connect(lost)
    assert kinds(connect(app)) == ["accept", 1013]


@each("opens", [True, False])
@each("status", [429, 420, 404])
def test_a_response_to_a_rejection_closes_the_connection(status: int, opens: bool) -> None:
    """Not all servers can send it. A view may accept after a rejection. Other responses reach the server."""

    async def view(websocket: Any) -> None:
        with contextlib.suppress(RateLimitExceeded):
            _ = status == 420 and await check(websocket, "named")
        if opens:
            await websocket.accept()
        respond = PlainTextResponse("no", status)  # as an error handler does
        await respond(websocket.scope, websocket._receive, websocket._send)

    app = application(view, Rule(name="named", limits="1/minute", cost=lambda _: 2, match={"view": ""}))
    end = ["start", "body"] if status == 404 else [1013 if opens else 1008]
    assert kinds(connect(app)) == ["accept"] * opens + end


def test_any_asgi_websocket_application_is_limited() -> None:
    """Rules on paths and async feature functions limit an application without a framework."""

    async def token(request: Any) -> str:
        return request.headers["host"]  # type: ignore[no-any-return]

    plain = sending({"type": "websocket.accept"})
    app = RateLimitMiddleware(plain, limiter=limiter_of("1/minute", key="token"), features={"token": token})
    hosts = [b"a", b"b", b"a"]
    assert [kinds(connect(app, headers=[(b"host", host)])) for host in hosts] == [["accept"], ["accept"], [1008]]


def test_a_queue_delays_handshakes() -> None:
    """A leaky-bucket queue delays a handshake like a request."""
    queue = Rule(limits="1000/second burst 2", algorithm={"name": "leaky-bucket", "mode": "queue"})
    app = application(echo, queue)
    delays: list[float] = []

    async def noted(delay: float) -> None:
        delays.append(delay)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ratelimit_mw.asgi.middleware.asyncio.sleep", noted)
        assert [kinds(connect(app)) for _ in range(2)] == [["accept"], ["accept"]]
    assert delays == [0.001]


@each("calls", [check, usage])
def test_a_rule_in_a_connection_may_count_by_method(calls: Any) -> None:
    """After the handshake, which is a GET, the method of the request is still GET."""
    rule = Rule(name="named", limits="5/minute", key=["method", "ip"], match={"view": ""})

    async def view(websocket: Any) -> None:
        await websocket.accept()
        await calls(websocket, "named")
        await websocket.send_text("fine")

    assert kinds(connect(application(view, rule))) == ["accept", "fine"]


@each("extensions", [None, DENIAL])
def test_the_status_of_a_rejection_in_a_view_is_the_outcome(extensions: Any) -> None:
    """A deny list that ends a handshake counts as a 403, and not as a 429."""
    counted = {"limits": "9/minute", "count_when": {"status": [403]}}
    named = {"name": "named", "limits": "1/minute", "key": ["user"], "match": {"view": ""}}
    settings = {"rules": [counted, named], "lists": {"deny": {"user": ["eve"]}}}
    rate = Limiter.from_settings(settings, clock=ManualClock(1_000_000.0))

    async def view(websocket: Any) -> None:
        await check(websocket, "named", user="eve")

    connect(application(view, limiter=rate), extensions=extensions)
    assert left(rate) == 8
