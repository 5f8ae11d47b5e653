"""The middleware decides ``RateLimit`` dependencies of routes, routers and applications with all other limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from calls import ask, http_scope
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi_apps import by_user, current_user, limited, remaining, statuses, view
from shared_store import SharedStore
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, Verdict, load_settings
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.fastapi import RateLimit, Usage, limit
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testmode import limits_off


def test_dependencies_of_routes_routers_and_applications_are_limits() -> None:
    """``RateLimit`` works wherever FastAPI takes dependencies. One object that appears twice is one limit."""
    everywhere = RateLimit("9/minute", name="app")
    router = APIRouter(prefix="/r", dependencies=[Depends(RateLimit("4/minute", name="router")), Depends(everywhere)])
    router.add_api_route("/a", view, dependencies=[Depends(RateLimit("2/minute", name="route"))])
    router.add_api_route("/b", view)
    app = FastAPI(dependencies=[Depends(everywhere)])
    app.include_router(router, dependencies=[Depends(RateLimit("8/minute", name="include"))])
    app.add_api_route("/c", view)
    limited(app, Rule(name="file", limits="99/minute"))
    policies = {path: ask(app, path).headers["ratelimit-policy"] for path in ("/r/a", "/r/b", "/c")}
    names = {
        path: sorted(item.partition('"')[2].partition('"')[0] for item in t.split(", ")) for path, t in policies.items()
    }
    assert names == {
        "/r/a": ["app", "file", "include", "route", "router"],
        "/r/b": ["app", "file", "include", "router"],
        "/c": ["app", "file"],
    }
    assert statuses(app, "/r/a", "/r/a", "/r/b", "/r/b", "/c") == [200, 429, 200, 429, 200]


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


def test_lists_of_paths_apply_to_dependencies_that_give_features() -> None:
    """An exempt path has no limit of a dependency that is decided later. Another spelling of the path has them all."""
    settings = load_settings({"exempt": ["/free"], "rules": [{"name": "all", "limits": "3/minute"}]})
    app = FastAPI(dependencies=[Depends(by_user("1/minute"))])
    app.add_api_route("/free", view)
    app.add_api_route("/{rest:path}", view)
    limited(app, limiter=Limiter.from_settings(settings, clock=ManualClock(1_000_000.0)))
    assert statuses(app, *["/free"] * 4, headers={"x-user": "ann"}) == [200] * 4
    assert statuses(app, "/free/", "/free//", "/a", headers={"x-user": "ann"}) == [200, 429, 429]


def test_one_object_has_one_count_without_endpoint_in_its_key() -> None:
    """Routes of a router share the count of the router's limit, unless its key names the endpoint."""
    for key, expected in (("ip", [200, 429, 429]), (["endpoint", "ip"], [200, 200, 429])):
        app = FastAPI(dependencies=[Depends(RateLimit("1/minute", key=key))])
        app.add_api_route("/a/{x}", view)
        app.add_api_route("/b/{x}", view)
        limited(app)
        assert statuses(app, "/a/1", "/b/1", "/a/2") == expected


COSTLY, DEEP = RateLimit("10/minute", name="costly"), RateLimit("9/minute", name="deep")


def test_a_limit_in_the_parameters_of_a_view_gives_its_verdict() -> None:
    """As a parameter it is the verdict, on which the view can settle the true cost."""
    app = FastAPI()

    @app.get("/")
    async def costly(verdict: Annotated[Verdict, Depends(COSTLY)]) -> list[int]:
        verdict.settle(6)
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


def test_the_settings_override_a_dependency() -> None:
    """A rule of the file with ``overrides`` changes the limits of a dependency by its name."""
    app = FastAPI(dependencies=[Depends(RateLimit("9/minute", name="app"))])
    app.add_api_route("/", view)
    limited(app, limiter=Limiter.from_settings({"rules": [{"overrides": "app", "limits": "1/hour"}]}))
    assert statuses(app, "/", "/") == [200, 429]


def test_dependencies_limit_handshakes() -> None:
    """On a WebSocket route a limit rejects the handshake, whether it is decided before or in a dependency."""
    app = FastAPI()

    @app.websocket("/first", dependencies=[Depends(RateLimit("1/minute"))])
    @app.websocket("/later", dependencies=[Depends(by_user("1/minute"))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    limited(app)

    async def connect(path: str) -> list[str]:
        sent: list[str] = []
        incoming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

        async def receive() -> Any:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        headers = [(b"host", b"testserver"), (b"x-user", b"ann")]
        await app(http_scope(type="websocket", path=path, headers=headers, subprotocols=[]), receive, send)
        return sent

    for path in ("/first", "/later"):
        assert [asyncio.run(connect(path)) for _ in range(2)] == [["websocket.accept"], ["websocket.close"]]


def test_a_dependency_without_the_middleware_does_not_run() -> None:
    """The error names the missing middleware for both kinds. In limits_off() they return an empty verdict."""
    app = FastAPI()
    app.add_api_route("/first", view, dependencies=[Depends(RateLimit("1/minute"))])
    app.add_api_route("/later", view, dependencies=[Depends(by_user())])
    for path in ("/first", "/later"):
        with pytest.raises(MissingMiddlewareError, match=r"RateLimit is limited .* Add RateLimitMiddleware"):
            ask(app, path)
        with limits_off():
            assert ask(app, path).status_code == 200


if hasattr(FastAPI, "frontend"):

    def test_dependencies_of_the_application_limit_served_files(tmp_path: Path) -> None:
        """Files that FastAPI serves when no route matches have the limits of the application."""
        (tmp_path / "index.html").write_text("front")
        app = FastAPI(dependencies=[Depends(RateLimit("4/minute", name="app")), Depends(by_user("2/minute"))])
        app.add_api_route("/api", view)
        app.frontend("/", directory=tmp_path)
        limited(app, Rule(name="file", limits="9/minute"))
        ann = {"x-user": "ann"}
        assert ask(app, "/", headers=ann).headers["ratelimit-policy"].count("w=60") == 3
        assert statuses(app, "/api", "/", headers=ann) == [200, 429]
        assert statuses(app, "/", "/") == [200, 429]

    def test_frontends_are_routes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Each frontend is one endpoint, the longest path first. Other paths have no route, and none of its limits."""
        (tmp_path / "index.html").write_text("front")
        inner = APIRouter(dependencies=[RateLimit("9/minute", name="inner")])
        inner.frontend("/docs", directory=tmp_path)
        mounted = FastAPI()
        mounted.frontend("/", directory=tmp_path)
        app = FastAPI()
        app.frontend("/app", directory=tmp_path)
        app.frontend("/app/new", directory=tmp_path)
        app.include_router(inner, prefix="/v1")
        app.mount("/mounted", mounted)
        app.add_api_route("/app/api", view, methods=["POST"])
        limited(app, Rule(name="all", limits="9/minute", key=["endpoint"]), Rule(name="app", limits="9/minute", **APP))

        def left(path: str) -> str:
            return ask(app, path, headers={"accept": "text/html"}).headers["ratelimit"].replace(";t=60", "")

        assert [left("/app/"), left("/app/x/y")] == ['"all";r=8, "app";r=8', '"all";r=7, "app";r=7']
        assert left("/app/new/") == '"all";r=8, "app";r=6'
        assert left("/app/api") == '"all";r=8, "app";r=5'
        assert left("/v1/docs/") == '"all";r=8, "inner";r=8'
        assert [left("/mounted/"), left("/mounted/x")] == ['"all";r=8', '"all";r=7']
        assert [left("/apps"), left("/v1/docsx")] == ['"all";r=8', '"all";r=7']
        assert caplog.messages == []

    def test_a_rule_for_a_path_beside_the_frontends_is_a_mistake(tmp_path: Path) -> None:
        """Frontends are routes, so a rule for the path of none of them has no route."""
        app = FastAPI()
        app.frontend("/app", directory=tmp_path, fallback=None)
        limited(app, Rule(name="apps", limits="9/minute", match={"path": "/apps/**"}))
        with pytest.raises(ConfigError, match="no route has the path '/apps/"):
            ask(app)


APP: dict[str, Any] = {"match": {"path": "/app/**"}}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"limits": "5/fortnight"}, r"^RateLimit at .*test_fastapi_dependencies\.py:\d+: limits: cannot parse"),
    ({"limits": "5/m", "match": {"path": "/x"}}, "a decorated view has the path of its route"),
    (
        {"limits": "5/m", "key": "ip", "features": {"user": current_user}},
        r"features\['user'\]: the limit does not use it: .* need ip",
    ),
    ({"limits": "5/m", "key": "user", "features": ["user"]}, r"py:\d+: features: expected .*; got \['user'\]"),
    ({"limits": "5/m", "key": "user", "features": {"user": "ann"}}, r"features\['user'\]: expected a dependency"),
    (
        {"limits": "5/m", "key": "user", "features": {"usr": current_user}},
        r"^RateLimit at .*py:\d+: features\['usr'\]: the limit does not use it: .* need user",
    ),
]


@each(("arguments", "message"), MISTAKES)
def test_an_invalid_dependency_is_rejected_when_built(arguments: dict[str, Any], message: str) -> None:
    """A dependency without a meaning raises an error at its line."""
    with pytest.raises(ConfigError, match=message):
        RateLimit(**arguments)


def test_a_dependency_may_provide_the_key_of_the_defaults() -> None:
    """Whether the limit uses it is known at the start, together with the settings."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[RateLimit("1/minute", features={"user": current_user})])
    limited(app, limiter=Limiter.from_settings({"defaults": {"key": "user"}}, clock=ManualClock(1_000_000.0)))
    assert [ask(app, headers={"x-user": name}).status_code for name in ("ann", "ann", "bob")] == [200, 429, 200]
    other = FastAPI(routes=app.routes)
    limited(other)
    with pytest.raises(ConfigError, match=r"^RateLimit at .*py:\d+: features\['user'\]: the limit does not use it"):
        ask(other)


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
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(RateLimit)])
    with pytest.raises(ConfigError, match=r'expected Depends\(RateLimit\("5/minute"\)\); got Depends\(RateLimit\)'):
        ask(limited(app))
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(Usage)])
    with pytest.raises(ConfigError, match=r"expected Depends\(Usage\(\)\); got Depends\(Usage\)"):
        ask(limited(app))
