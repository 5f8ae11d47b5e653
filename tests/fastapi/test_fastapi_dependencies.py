"""The middleware decides ``RateLimit`` dependencies of routes, routers and applications with all other limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from calls import ask
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.exceptions import FastAPIError
from fastapi_apps import limited, remaining, statuses, view
from shared_store import SharedStore
from tables import each
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter, Rule, Verdict
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.fastapi import RateLimit, limit
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testmode import limits_off

EXPECTED = {
    "/r/a": "app file include route router",
    "/r/b": "app file include router",
    "/c": "app file",
    "/again/r/b": "app file router",
    "/mounted/r/b": "app file inner router",
    "/mounted/d": "file inner",
}


def test_dependencies_of_routes_routers_and_applications_are_limits() -> None:
    """``RateLimit`` works wherever FastAPI takes dependencies. One object that appears twice is one limit.

    A router that is included twice has its limits in both places. Those of an application do not hold below its mounts.
    """
    everywhere = RateLimit("9/minute", name="app")
    router = APIRouter(prefix="/r", dependencies=[Depends(RateLimit("4/minute", name="router")), Depends(everywhere)])
    router.add_api_route("/a", view, dependencies=[Depends(RateLimit("2/minute", name="route"))])
    router.add_api_route("/b", view)
    app, inner = (
        FastAPI(dependencies=[Depends(everywhere)]),
        FastAPI(dependencies=[RateLimit("7/minute", name="inner")]),
    )
    app.include_router(router, dependencies=[Depends(RateLimit("8/minute", name="include"))])
    app.include_router(router, prefix="/again")
    inner.include_router(router)
    inner.add_api_route("/d", view)
    app.mount("/mounted", inner)
    app.add_api_route("/c", view)
    limited(app, Rule(name="file", limits="99/minute"))
    assert statuses(app, "/r/a", "/r/a", "/r/a", "/r/b", "/r/b", "/c") == [200, 200, 429, 200, 200, 200]
    assert statuses(app, "/r/b", "/again/r/b", "/mounted/r/b", "/mounted/d") == [429, 429, 429, 200]
    for path, names in EXPECTED.items():
        policy = ask(app, path, client=f"198.51.100.{len(path)}").headers["ratelimit-policy"]
        assert sorted(re.findall('"(.*?)"', policy)) == names.split()


def test_limits_of_all_sources_are_decided_together() -> None:
    """File, decorator and dependencies need one store call before any dependency runs, and are all or nothing."""
    ran: list[str] = []
    store = SharedStore()
    limiter = Limiter([Rule(name="file", limits="9/minute")], store=store, clock=ManualClock(1_000_000.0))
    app = FastAPI(dependencies=[Depends(lambda: ran.append("dependency")), Depends(RateLimit("2/minute", name="app"))])
    app.get("/")(limit("5/minute", name="view")(view))
    limited(app, limiter=limiter)
    assert statuses(app, *["/"] * 3) == [200, 200, 429]
    assert (store.calls, ran) == (3, ["dependency"] * 2)
    assert remaining(limiter, "view", ip="192.0.2.7") == [3]


COSTLY, DEEP = RateLimit("10/minute", name="costly"), RateLimit("9/minute", name="deep")


def test_a_limit_in_the_parameters_of_a_view_gives_its_verdict() -> None:
    """As a parameter it is the verdict, on which the view can settle the true cost."""
    app = FastAPI()

    @app.get("/")
    async def costly(verdict: Annotated[Verdict, Depends(COSTLY)]) -> list[int]:
        verdict["costly"].settle(6)
        return [decision.remaining for decision in verdict.decisions]

    limiter = Limiter(clock=ManualClock(1_000_000.0))
    limited(app, limiter=limiter)
    assert ask(app).json() == [9]
    assert remaining(limiter, "costly", ip="192.0.2.7") == [4]


def test_a_dependency_of_a_dependency_is_a_limit() -> None:
    """The middleware finds a limit in nested dependencies and on a decorated dependency."""

    @limit("2/minute", name="decorated")
    def session(_: Annotated[Any, Depends(DEEP)]) -> str:
        return "session"

    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(session)])
    limited(app)
    assert '"deep";q=9;w=60' in ask(app).headers["ratelimit-policy"]
    assert statuses(app, "/", "/") == [200, 429]


def test_default_names_are_numbered() -> None:
    """Clients see no module in the names of limits without a name, which are numbered in order."""
    app = FastAPI(dependencies=[Depends(RateLimit("9/minute"))])
    app.add_api_route("/", view, dependencies=[Depends(RateLimit("8/minute"))])
    limited(app)
    assert ask(app).headers["ratelimit-policy"] == '"RateLimit";q=9;w=60, "RateLimit#2";q=8;w=60'


def test_dependencies_limit_handshakes() -> None:
    """On a WebSocket route a limit rejects the handshake."""
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(RateLimit("1/minute"))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    limited(app)
    assert [kinds(connect(app, "/")) for _ in range(2)] == [["accept"], [1008]]


def test_a_dependency_without_the_middleware_does_not_run() -> None:
    """The error names the missing middleware. In limits_off() it returns an empty verdict."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(RateLimit("1/minute"))])
    with pytest.raises(MissingMiddlewareError, match=r"RateLimit is limited .* Add RateLimitMiddleware"):
        ask(app)
    with limits_off():
        assert ask(app).status_code == 200


@each(
    ("arguments", "message"),
    [
        ({"limits": "5/fortnight"}, r"^RateLimit at .*test_fastapi_dependencies\.py:\d+: limits: cannot parse"),
        ({"match": {"path": "/x"}}, "a decorated view has the path of its route"),
        ({"features": {}}, r"^RateLimit at .*test_fastapi_dependencies\.py:\d+: features: unknown option"),
    ],
)
def test_an_invalid_dependency_is_rejected_when_built(arguments: dict[str, Any], message: str) -> None:
    """A dependency without a meaning raises an error at its line."""
    with pytest.raises(ConfigError, match=message):
        RateLimit(**{"limits": "5/m", "key": "user", **arguments})


@each("place", ["route", "router", "application", "annotation", "default"])
def test_a_dependency_needs_no_depends_around_it(place: str) -> None:
    """``dependencies=[RateLimit(...)]`` limits, and so does a parameter of the view. Objects compare by identity."""
    once: Any = RateLimit("1/minute")
    app = FastAPI(dependencies=[once] if place == "application" else [])
    router = APIRouter(dependencies=[once] if place == "router" else [])

    def annotated(verdict: Any) -> bool:
        return bool(verdict)

    annotated.__annotations__["verdict"] = Annotated[Any, once]

    def default(verdict: Any = once) -> bool:
        return bool(verdict)

    views = {"annotation": annotated, "default": default}
    router.add_api_route("/", views.get(place, view), dependencies=[once] if place == "route" else [])
    app.include_router(router)
    limited(app)
    assert statuses(app, "/", "/") == [200, 429]
    assert once == once
    assert once != RateLimit("1/minute")
    assert len({once, once}) == 1


def test_the_class_instead_of_an_object_is_a_mistake() -> None:
    """``Depends(RateLimit)`` would take the options of the limit from the query of the client."""
    with pytest.raises(FastAPIError):
        FastAPI().add_api_route("/", view, dependencies=[Depends(RateLimit)])


# -- annotations that are kept as text, as all in this file ----------------------------------------------------

per_minute = RateLimit("2/minute")


def named(verdict: Annotated[Verdict, Depends(per_minute)]) -> None:
    """A view whose limit has a name."""


def mistaken(verdict: Annotated[Verdict, Depends(RateLimit("2/minute"))]) -> None:
    """A view whose limit would be another one for each route."""


def test_a_limit_in_a_text_is_an_error() -> None:
    """FastAPI evaluates the text for each route, so each would have a count. The error says what to write."""
    with pytest.raises(ConfigError, match=rf"^RateLimit at {__file__}: FastAPI evaluates .* Depends\(per_minute\)"):
        FastAPI().add_api_route("/", mistaken)


def test_a_limit_with_a_name_is_one_limit() -> None:
    """For all routes and includes that evaluate the text."""
    router, app = APIRouter(), FastAPI()
    router.add_api_route("/", named)
    for prefix in ("/a", "/b"):
        app.include_router(router, prefix=prefix)
    app.add_api_route("/c", named)
    assert statuses(limited(app), "/a/", "/b/", "/c", "/a/") == [200, 200, 429, 429]


def test_a_limit_on_a_class_holds_for_a_method_that_is_a_dependency() -> None:
    """As it does for a method that is a view."""
    shown = limit("1/minute")(type("Shown", (), {"read": lambda self: None}))()
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(shown.read)])
    assert statuses(limited(app), "/", "/") == [200, 429]


def test_a_callable_object_without_a_hash_is_limited() -> None:
    class View:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, verdict: Any = Depends(RateLimit("1/minute"))) -> None: ...  # noqa: B008

    app = FastAPI()
    app.add_api_route("/", View())
    assert statuses(limited(app), "/", "/") == [200, 429]


if hasattr(FastAPI, "frontend"):

    def test_dependencies_of_the_application_limit_served_files(tmp_path: Path) -> None:
        """Files that FastAPI serves when no route matches have the limits of the application, and no route."""
        (tmp_path / "index.html").write_text("front")
        app = FastAPI(dependencies=[RateLimit("4/minute", name="app"), RateLimit("2/minute", key="header:x-user")])
        router = APIRouter(dependencies=[RateLimit("3/minute", name="router")])
        router.frontend("/docs", directory=tmp_path)
        app.include_router(router, prefix="/v1", dependencies=[RateLimit("3/minute", name="include")])
        app.frontend("/app", directory=tmp_path)
        limited(app, Rule(name="file", limits="9/minute", key=["endpoint"], match={"path": "/app/**"}))
        ann = {"x-user": "ann"}
        assert ask(app, "/app/", headers=ann).headers["ratelimit-policy"].count("w=60") == 3
        assert ask(app, "/v1/docs/", headers=ann).headers["ratelimit-policy"].count("w=60") == 4
        assert statuses(app, "/app/", headers=ann) == [429]
        assert statuses(app, "/app/", "/app/", "/app/") == [200, 200, 429]

    def test_the_files_of_the_longest_path_have_their_own_limits(tmp_path: Path) -> None:
        """Not those of other files. A route with the path takes precedence over files, whatever its methods are."""
        (tmp_path / "index.html").write_text("front")
        app = FastAPI()
        for path in ("/", "/admin"):
            router = APIRouter(dependencies=[RateLimit("1/minute", name=f"files{len(path)}")])
            router.frontend(path, directory=tmp_path)
            app.include_router(router)
        app.add_api_route("/post", named, methods=["POST"])
        limited(app)
        assert statuses(app, "/admin/", "/post", "/", "/admin/", "/") == [200, 405, 200, 429, 429]
