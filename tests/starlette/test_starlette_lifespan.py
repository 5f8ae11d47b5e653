"""Mistakes stop the start of an application, and its shutdown closes the store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from calls import aask, statuses
from lifespan import run_lifespan
from shared_store import SharedStore
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route, Router
from starlette_apps import hello
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.starlette import RateLimitMiddleware, exempt, limit
from ratelimit_mw.testing import ManualClock


class PendingCorrection(SharedStore):
    """A store that records its close and the messages sent before."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__()
        self.sent = sent
        self.closed: list[list[str]] = []

    def close(self) -> None:
        self.closed.append(list(self.sent))


def test_the_store_is_closed_after_the_shutdown() -> None:
    """The store closes after the shutdown of the application and before the server ends. It opens again on use."""
    sent: list[str] = []
    store = PendingCorrection(sent)
    during: list[int] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, int]]:
        yield {"own": 7}
        during.append(len(store.closed))

    limiter = Limiter([Rule(limits="2/minute")], store=store, clock=ManualClock(1_000_000.0))
    app = Starlette(routes=[Route("/", hello)], lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    state: dict[str, Any] = {}
    for rounds in (1, 2):
        statuses: list[int] = []

        async def asks(statuses: list[int] = statuses) -> None:
            statuses.append((await aask(app)).status_code)

        assert asyncio.run(run_lifespan(app, sent, asks, state)) == ""
        assert (statuses, during, len(store.closed)) == ([200], [*range(rounds)], rounds)
    assert store.closed[0] == ["lifespan.startup.complete"]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"] * 2
    assert state == {"own": 7}


def test_the_store_is_closed_after_a_failed_start() -> None:
    """A failed start closes an open store. A middleware that failed to build has none to close."""
    store = PendingCorrection([])
    limiter = Limiter([Rule(limits="2/minute")], store=store, clock=ManualClock(1_000_000.0))

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        limiter.hit({"ip": "192.0.2.7"})
        raise ConfigError("no database")
        yield

    for options, message in (({"limiter": limiter}, "no database"), ({}, "give the middleware either limits=")):
        sent: list[str] = []
        app = Starlette(lifespan=lifespan if options else None)
        app.add_middleware(RateLimitMiddleware, **options)
        assert message in asyncio.run(run_lifespan(app, sent))
        assert sent == ["lifespan.startup.failed"]
    assert len(store.closed) == 1


@exempt("missing")
async def mistyped(request: Any) -> None:
    raise AssertionError("never called")


@each("place", ["added", "wrapped", "late"])
def test_a_mistake_stops_the_start(place: str) -> None:
    """The server receives the failed start with its reason, and the resources of the application are closed.

    The routes are read after the start of the application, which may add some, even where the middleware wraps it.
    """
    opened: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        opened.append("opened")
        app.routes.extend([Route("/", mistyped)] * (place == "late"))
        try:
            yield
        finally:
            opened.append("closed")

    app: Any = Starlette(routes=[Route("/", mistyped)] * (place != "late"), lifespan=lifespan)
    if place == "wrapped":
        app = RateLimitMiddleware(app, settings={})
    else:
        app.add_middleware(RateLimitMiddleware, settings={})
    sent: list[str] = []
    message = "@exempt on test_starlette_lifespan.mistyped: unknown rule 'missing'"
    assert message in asyncio.run(run_lifespan(app, sent))
    assert sent == ["lifespan.startup.failed"]
    assert opened == ["opened", "closed"]


REPLACING = {"rules": [{"overrides": "view", "limits": "1/minute"}]}


@each("place", ["application", "route", "mount", "router"])
def test_a_function_of_a_framework_may_have_views(place: str) -> None:
    """When Starlette builds the middleware around a function of its own, the routes become known later."""
    ours = [Middleware(RateLimitMiddleware, settings=REPLACING)]
    view = limit("9/minute", name="view")(hello)
    inside: dict[str, Any] = {name: ours if name == place else None for name in ("route", "mount", "router")}
    route = Route("/x", view, middleware=inside["route"])
    mount = Mount("/m", app=Router([route], middleware=inside["router"]), middleware=inside["mount"])
    app = Starlette(routes=[mount], middleware=ours if place == "application" else None)
    assert statuses(app, 2, path="/m/x") == [200, 429]


class Plain:
    """An application without a framework that supports lifespan. Its routes could be in its scope."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})


@each(
    ("rule", "message"),
    [
        ({"overrides": "missing", "limits": "1/s"}, "no decorator has a rule named 'missing'"),
        ({"key": "path:id", "limits": "1/s"}, "uses the feature 'path:id'"),
    ],
)
def test_a_mistake_stops_the_start_of_a_plain_application(rule: dict[str, Any], message: str) -> None:
    """An application without routes after its start cannot provide a path parameter, so the start fails."""
    sent: list[str] = []
    store, settings = PendingCorrection(sent), load_settings({"rules": [rule]})
    app = RateLimitMiddleware(Plain(), limiter=Limiter(settings.rules, store, None, settings))
    assert message in asyncio.run(run_lifespan(app, sent))
    assert sent == ["lifespan.startup.failed"]
    assert store.closed == [[]]


def test_lifespan_messages_are_passed_through() -> None:
    """The application and the server receive the same lifespan messages in the same order."""
    received: list[Any] = []
    messages = [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.failed", "message": "no"}]

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            received.append((scope, await receive()))
            await send(message)

    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    waiting, sent, scope = list(incoming), [], {"type": "lifespan"}

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    app = RateLimitMiddleware(plain, limiter=Limiter([Rule(limits="1/minute")]))
    asyncio.run(app(scope, receive, send))
    assert [sent[i] is messages[i] for i in range(2)] == [True, True]
    assert [(s is scope, message) for s, message in received] == [(True, message) for message in incoming]
