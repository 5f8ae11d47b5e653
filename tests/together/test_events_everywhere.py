"""Each concluded request has one event, in every framework, whatever its end."""

import asyncio
from typing import Any

import pytest
from calls import CLIENT, aask, ask, http_scope
from django_calls import MIDDLEWARE
from sites import SITES, Reply
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from tables import each
from websocket_calls import connect, echo

from ratelimit_mw import Event, Limiter, RateLimitExceeded, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.starlette import check, messages
from ratelimit_mw.testing import ManualClock


def observed(*rules: Rule, store: Any = "memory://", **settings: Any) -> tuple[Limiter, list[Event]]:
    events: list[Event] = []
    clock = ManualClock(1_000_000.0)
    return Limiter(rules, store, clock, load_settings(settings), observers=[events.append]), events


def outcomes(events: list[Event]) -> list[str]:
    return [event.outcome for event in events]


def test_a_check_in_a_stream_is_in_its_own_event_only() -> None:
    """The traffic log counts the request once for its endpoint."""
    part = Rule(name="part", limits="9/minute", match={"view": ""})
    rate, events = observed(Rule(name="api", limits="9/minute"), part, traffic_log="memory://")

    async def view(request: Any) -> Any:
        async def parts() -> Any:
            yield b"a"
            await check(request, "part")
            yield b"b"

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/", view)])
    assert ask(RateLimitMiddleware(app, limiter=rate)).status_code == 200
    assert [event.outcomes for event in events] == [{"part": "allowed"}, {"api": "allowed"}]
    assert rate.traffic_log.total("endpoint:/:allowed", 0, 2e6) == 1  # type: ignore[union-attr]


@each("name", SITES)
def test_two_stages_of_one_limiter_send_one_event(name: str) -> None:
    """The outer middleware sends it, with the decisions of both."""
    clients, users = Rule(name="clients", limits="9/minute"), Rule(name="users", limits="1/minute", key=["user"])
    rate, events = observed(clients, users)
    outer: Any = {"outer": {"limiter": rate, "before_user": True}}
    more = {"middleware": MIDDLEWARE * 2} if "django" in name else outer
    with SITES[name](rate, features={"user": lambda _: "ann"}, **more) as site:
        assert site.statuses(2) == [200, 429]
    assert [set(event.rules) for event in events] == [{"clients", "users"}] * 2
    assert outcomes(events) == ["allowed", "rejected"]


class Early:
    """An observer that is also called when the response starts, as one that needs the span of the request."""

    is_early = True

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, event: Event) -> None:
        self.seen.append(f"{event.outcome} {event.method} {event.endpoint}")


@each("name", SITES)
def test_an_early_observer_is_called_before_the_body_too(name: str) -> None:
    """It knows the outcome and the route by then. A request counts once."""
    early, events = Early(), list[Event]()

    async def view(_: Any) -> Reply:
        async def parts() -> Any:
            early.seen.append("body")
            yield b"hello"

        return Reply(200, parts())

    where = "GET None" if name in ("asgi", "wsgi") else "GET /"
    with SITES[name](Rule(name="api", limits="1/minute"), view, observers=[early, events.append]) as site:
        assert site.statuses(2) == [200, 429]
    assert early.seen[0] == f"allowed {where}"
    assert sorted(early.seen) == [*[f"allowed {where}"] * 2, "body", *[f"rejected {where}"] * 2]
    assert outcomes(events) == ["allowed", "rejected"]


def test_a_cancelled_request_has_an_event() -> None:
    """Its cost stays consumed."""
    rate, events = observed(Rule(name="api", limits="9/minute"))

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        task = asyncio.ensure_future(aask(RateLimitMiddleware(hang, limiter=rate)))
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    started = asyncio.Event()
    asyncio.run(scenario())
    assert [(event.outcome, event.cost) for event in events] == [("allowed", 1)]


def test_an_observer_runs_after_the_response() -> None:
    seen: list[str] = []
    rate = Limiter([Rule(name="api", limits="1/minute")], observers=[lambda event: seen.append(event.outcome)])
    app = RateLimitMiddleware(PlainTextResponse("hello"), limiter=rate)

    async def send(message: Any) -> None:
        seen.append(message["type"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    for _ in range(2):
        asyncio.run(app(http_scope(), receive, send))
    sent = ["http.response.start", "http.response.body"]
    assert seen == [*sent, "allowed", *sent, "rejected"]


# -- WebSockets --------------------------------------------------------------------------------------------


def socket_of(view: Any, rate: Limiter) -> Starlette:
    app = Starlette(routes=[WebSocketRoute("/ws", view)])
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    return app


def test_a_handshake_has_an_event_at_the_end_and_each_message_its_own() -> None:
    rate, events = observed(Rule(name="connects", limits="1/minute"))
    app = socket_of(messages("2/minute", name="says", over="drop")(echo), rate)
    for _ in range(2):
        connect(app, said=["a", "b", "c"])
    assert [(event.outcome, event.rules) for event in events] == [
        ("allowed", ("says",)),
        ("allowed", ("says",)),
        ("rejected", ("says",)),
        ("allowed", ("connects",)),
        ("rejected", ("connects",)),
    ]


@each("extensions", [None, {"websocket.http.response": {}}])
def test_a_rejected_handshake_of_a_client_that_is_gone_has_an_event(extensions: Any) -> None:
    rate, events = observed(lists={"deny": {"ip": [CLIENT]}})

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        raise OSError("the client is gone")

    scope = http_scope(type="websocket", path="/ws", scheme="ws", subprotocols=[], extensions=extensions)
    with pytest.raises(OSError, match="gone"):
        asyncio.run(socket_of(echo, rate)(scope, receive, send))
    assert outcomes(events) == ["denied"]


def test_checks_in_an_open_websocket_have_events_of_their_own() -> None:
    """A connection keeps no verdict of each message."""

    async def view(websocket: Any) -> None:
        await websocket.accept()
        for _ in range(2):
            try:
                await check(websocket, "post")
            except RateLimitExceeded:
                await websocket.send_text("no")
        await websocket.close()

    rate, events = observed(Rule(name="post", limits="1/minute", match={"view": ""}))
    connect(socket_of(view, rate))
    assert [(event.outcome, event.rules) for event in events] == [
        ("allowed", ("post",)),
        ("rejected", ("post",)),
        ("allowed", ()),
    ]


def test_a_websocket_that_the_view_rejects_has_one_event() -> None:
    async def view(websocket: Any) -> None:
        await check(websocket, "post")

    rate, events = observed(Rule(name="post", limits="1/minute", match={"view": ""}))
    app = socket_of(view, rate)
    for _ in range(2):
        connect(app)
    assert outcomes(events) == ["allowed", "rejected"]
