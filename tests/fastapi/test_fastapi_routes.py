"""Included, nested, mounted and late FastAPI routes are found with their whole template."""

from __future__ import annotations

import asyncio
from typing import Any

from calls import ask, http_scope
from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from fastapi_apps import limited, statuses
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from starlette.applications import Starlette
from starlette.routing import Match, Mount, Route
from starlette_routing import index_of, known, target_of, went_to
from tables import each

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.fastapi import limit


def template_of(app: Any, path: str, method: str = "GET") -> str:
    return index_of(app).find(ASGIRequest(http_scope(path=path, method=method))).endpoint


def items(key: Any = "ip", **options: Any) -> APIRouter:
    """Return a router with one limited and one free view."""
    router = APIRouter(prefix="/items")

    @router.get("/{id}")
    @limit("2/minute", key=key, **options)
    def item(id: int) -> int:  # noqa: A002 - a path parameter
        return id

    @router.post("/")
    async def make() -> str:
        return "made"

    return router


# -- comparison with FastAPI -------------------------------------------------------------------------------

prefixes = st.sampled_from(["", "/a", "/b", "/{t}", "/a/{t}"])
leaf_paths = st.sampled_from(["/", "/a", "/b/c", "/{x}", "/{x:path}", "/a/{x}", "/{x}/b", "/v{x}"])
asked = st.lists(st.sampled_from(["a", "b", "c", "v1", "7", ""]), max_size=5).map(lambda parts: "/" + "/".join(parts))


def _view() -> Any:
    async def view() -> str:
        return "view"

    return view


async def _socket(websocket: Any) -> None:
    await websocket.close()


def _own(path: str) -> Any:
    return Route(path, lambda request: PlainTextResponse("own"))


def _add(router: Any, path: str, kind: str) -> None:
    if kind == "websocket":
        router.add_api_websocket_route(path, _socket)
    elif kind == "own":
        router.routes.append(_own(path))
    elif kind == "mount":
        router.mount(path.partition("{")[0].rstrip("/") or "/m", Starlette(routes=[_own("/"), _own("/{y}")]))
    else:
        router.add_api_route(path, _view(), methods=[kind])


kinds = st.sampled_from(["GET", "GET", "POST", "websocket", "own", "mount"])
leaves = st.tuples(leaf_paths, kinds)
plans = st.recursive(
    st.tuples(st.just(""), st.lists(leaves, max_size=3), st.just([])),
    lambda inner: st.tuples(prefixes, st.lists(leaves, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=4,
)


def _filled(router: Any, plan: Any, above: str = "") -> Any:
    """Return a router or application with the routes of a plan and the routers that it includes."""
    _, own, included = plan
    for path, kind in own:
        _add(router, path, kind)
    for inner in included:
        prefix = inner[0] if above.count("{t}") + inner[0].count("{t}") <= 1 else "/deep"
        router.include_router(_filled(APIRouter(), inner, above + prefix), prefix=prefix)
    return router


@examples(150)
@given(plans, st.lists(asked, min_size=1, max_size=5), st.sampled_from(["GET", "HEAD", "POST"]), st.booleans())
def test_the_index_agrees_with_fastapi(plan: Any, requests: list[str], method: str, socket: bool) -> None:
    """For any includes and prefixes, the index finds the endpoint that FastAPI calls."""
    app = _filled(FastAPI(openapi_url=None, redirect_slashes=False), plan)
    index, kind = index_of(app), "websocket" if socket else "http"
    for path in requests:
        scope = asyncio.run(went_to(app, path, method, kind))
        request = ASGIRequest(http_scope(type=kind, path=path, method=method))
        assert target_of(index, index.find(request)) is known(index, scope.get("endpoint")), path
        named = {name: str(value) for name, value in scope.get("path_params", {}).items()}
        assert index.params(request) == named, path


# -- templates ---------------------------------------------------------------------------------------------


def test_a_router_that_is_included_twice_has_two_templates() -> None:
    """Two includes of one router have separate counts by endpoint, and one count without endpoint."""
    for key, expected in ((["endpoint"], [200, 200, 429, 200]), ([], [200, 200, 429, 429])):
        app, router = FastAPI(), items(key)
        app.include_router(router, prefix="/v1")
        app.include_router(router, prefix="/v2")
        limited(app)
        assert statuses(app, "/v1/items/1", "/v1/items/2", "/v1/items/3", "/v2/items/1") == expected


@each("outer", [FastAPI, Starlette])
def test_mounted_applications_have_whole_templates(outer: Any) -> None:
    """It follows the template of the mount, even with a parameter, and has the prefixes of all routers and includes."""
    inner, v1 = FastAPI(), APIRouter(prefix="/v1")
    v1.include_router(items(["endpoint"]), prefix="/shop")
    inner.include_router(v1, prefix="/api")
    app = outer()
    app.mount("/plain", inner)
    app.router.routes.append(Mount("/t/{tenant}", app=inner))
    below = "api/v1/shop/items"
    assert template_of(app, f"/plain/{below}/7") == f"/plain/{below}/{{id}}"
    assert template_of(app, f"/t/acme/{below}/7") == f"/t/{{tenant}}/{below}/{{id}}"
    limited(app)
    paths = [f"/t/a/{below}/1", f"/t/b/{below}/2", f"/t/c/{below}/3", f"/plain/{below}/1"]
    assert statuses(app, *paths) == [200, 200, 429, 200]


def test_routes_included_later_are_limited() -> None:
    """A router included after the first request, and a route added to it later, have their limits."""
    app, late = limited(FastAPI()), APIRouter()
    assert statuses(app, "/late") == [404]
    app.include_router(late, prefix="/late")
    assert statuses(app, "/late/x") == [404]
    late.add_api_route("/x", limit("1/minute")(_view()))
    if not hasattr(app.routes[-1], "original_router"):
        app.include_router(late, prefix="/late")  # FastAPI before 0.137 copies the routes when it includes a router.
    assert statuses(app, "/late/x", "/late/x") == [200, 429]


class ByHeader(APIRoute):
    """A custom route that checks a header, as in FastAPI's documentation."""

    def matches(self, scope: Any) -> Any:
        match, child = super().matches(scope)
        return (match, child) if (b"x-beta", b"1") in scope["headers"] else (Match.NONE, {})


def test_custom_route_classes_are_called() -> None:
    """A route class that checks a header is called with its prefix, even in included routers."""
    router, app = APIRouter(route_class=ByHeader), FastAPI()
    router.add_api_route("/x", limit("1/minute")(_view()))
    app.include_router(router, prefix="/v1")
    app.add_api_route("/v1/x", _view())
    limited(app)
    beta = {"x-beta": "1"}
    assert [ask(app, "/v1/x", headers=headers).status_code for headers in (beta, {}, beta, {})] == [200, 200, 429, 200]
