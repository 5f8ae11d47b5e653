"""For any routes and path, the index of routes finds the same endpoint as Starlette's router."""

import asyncio
import re
from typing import Any

import pytest
from calls import http_scope
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router, WebSocketRoute
from starlette_routing import index_of, known, target_of, went_to
from tables import each

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.asgi.router import RouteTable
from ratelimit_mw.keys.features import INVALID, UNMATCHED
from ratelimit_mw.rules.marks import Destination

SEGMENTS = ["a", "b", "a b", "a*", "**", "a.b", "{x}", "v{x}", "{x}-{y}"]
SEGMENTS += ["{x:int}", "{x:float}", "{x:uuid}", "{x:path}", "f{x:path}g", ""]
PIECES = ["a", "b", "a b", "a*", "ab", "**", "a.b", "v1", "1", "01", "1.5", "x-y", "é", "", "\n", "a\n", "fg", "f/g"]
PIECES += ["0f0e0d0c-0b0a-0908-0706-050403020100"]


def find_route(app: Any, path: str, method: str = "GET", **scope: Any) -> Destination:
    return index_of(app).find(ASGIRequest(http_scope(path=path, method=method, **scope)))


def endpoint(name: str) -> Any:
    async def respond(request: Any) -> PlainTextResponse:
        return PlainTextResponse(name)

    return respond


def connection(name: str) -> Any:
    async def respond(websocket: Any) -> None:
        await websocket.close()

    return respond


class Both(HTTPEndpoint):
    async def get(self, request: Any) -> PlainTextResponse:
        return PlainTextResponse("class")


async def opaque(scope: Any, receive: Any, send: Any) -> None:
    """Return an application whose routes cannot be read."""
    if scope["type"] == "http":
        await PlainTextResponse("opaque")(scope, receive, send)


paths = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
asked = st.lists(st.sampled_from(PIECES), max_size=5).map(lambda parts: "/" + "/".join(parts))
methods = st.sampled_from([None, ["GET"], ["POST"], ["GET", "PUT"]])


def one_name_each(path: str) -> bool:
    return all(path.count("{" + name) <= 1 for name in "xy")


leaves = st.one_of(
    st.builds(lambda path, methods: Route(path, endpoint(path), methods=methods), paths.filter(one_name_each), methods),
    st.builds(lambda path: Route(path, Both), paths.filter(one_name_each)),
    st.builds(lambda path: WebSocketRoute(path, connection(path)), paths.filter(one_name_each)),
)
mounted = st.one_of(st.just(opaque), st.lists(leaves, max_size=3).map(lambda routes: Router(routes)))
mount_paths = paths.filter(lambda path: one_name_each(path) and "//" not in path and not path.endswith("/"))
mounts = st.builds(
    lambda path, app: Mount(path, app=app),
    st.one_of(st.just(""), mount_paths),
    st.one_of(mounted, st.just(Starlette())),
)
hosts = st.builds(lambda app: Host("{x}.example.org", app=app), mounted)
tables = st.lists(st.one_of(leaves, leaves, mounts, hosts), max_size=6)


@examples(400)
@given(
    tables,
    st.lists(asked, min_size=1, max_size=6),
    st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "get", "BREW"]),
    st.sampled_from(["http", "websocket"]),
    st.sampled_from(["testserver", "api.example.org:80", "API.example.org", "api.example.org.", "[::1]:80", "a b"]),
    st.sampled_from(["", "/root", "/a"]),
)
def test_the_index_agrees_with_the_router_of_starlette(
    table: list[BaseRoute], requests: list[str], method: str, kind: str, host: str, root: str
) -> None:
    """For any routes, path, method, host and protocol, the index finds the endpoint that Starlette calls."""
    app = Starlette(routes=table)
    index = index_of(app)
    for path in requests:
        more: Any = {"headers": [(b"host", host.encode())], "root_path": root}
        scope = asyncio.run(went_to(app.router, root + path, method, kind, **more))
        for _ in range(2):  # The second lookup reads the cache.
            request = ASGIRequest(http_scope(type=kind, path=root + path, method=method, **more))
            to = index.find(request)
            assert target_of(index, to) is known(index, scope.get("endpoint")), (path, table, to)
            named = {name: str(value) for name, value in scope.get("path_params", {}).items()}
            assert index.params(request) == named, (path, table)


DEEP = Mount("/v1", routes=[Mount("/{tenant}", routes=[Mount("/items", routes=[Route("/{x:int}/{y:path}", Both)])])])
OPAQUE = Mount("/files/{site}", app=opaque)
CASELESS = Route("/Login", Both)
CASELESS.path_regex = re.compile(CASELESS.path_regex.pattern, re.IGNORECASE)
BY_HOST = Host("api.example.org", app=opaque)


@each(
    ("route", "path", "hosts", "endpoint"),
    [
        (DEEP, "/v1/acme/items/7/a/b", [], "/v1/{tenant}/items/{x}/{y}"),  # three mounts, without convertors
        (OPAQUE, "/files/a/b/c", [], "/files/{site}/{path}"),  # a mount that cannot be read is one endpoint
        (Mount("/api", app=Router()), "/api/x", [], UNMATCHED),
        (OPAQUE, "/x", [], UNMATCHED),
        (Route("/login", Both), "/login\n", [], "/login"),  # patterns that end in "$" accept one more line feed
        (CASELESS, "/LOGIN", [], "/Login"),  # the limit applies to all paths of its regular expression
        (CASELESS, "/x", [], UNMATCHED),
        (BY_HOST, "/", ["api.example.org:80"], "/{path}"),
        (BY_HOST, "/", ["a b"], UNMATCHED),
        (BY_HOST, "/", ["api.example.org", "b.example"], "/{path}"),  # the first line decides
        (BY_HOST, "/", [], UNMATCHED),
    ],
)
def test_a_request_has_the_template_of_its_route(route: BaseRoute, path: str, hosts: list[str], endpoint: str) -> None:
    """The template has all prefixes, and no convertors. A path that no route matches is unmatched."""
    app = Starlette(routes=[Route("/other", Both), route])
    headers = [(b"host", host.encode()) for host in hosts]
    assert find_route(app, path, headers=headers).endpoint == endpoint


def test_parameters_have_the_value_of_the_convertor() -> None:
    """A number has one text for any leading zeros, so a client cannot get more than one count for it."""
    index = index_of(Starlette(routes=[Route("/{x:int}", endpoint("x"))]))
    params = [index.params(ASGIRequest(http_scope(path=path))) for path in ("/7", "/007", "/" + "9" * 5000)]
    assert params == [{"x": 7}, {"x": 7}, {"x": INVALID}]


class ByVersion(Route):
    """A route that checks more than path and method."""

    def __init__(self, path: str, endpoint: Any, version: bytes) -> None:
        super().__init__(path, endpoint)
        self.version = version

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, child = super().matches(scope)
        return (match, child) if (b"version", self.version) in scope["headers"] else (Match.NONE, {})


def test_a_route_with_its_own_matches_is_called() -> None:
    """The index calls the ``matches`` of such a route for each request, even below a mount, and caches no result."""
    one, two = endpoint("one"), endpoint("two")
    index = index_of(Starlette(routes=[Mount("/v", routes=[ByVersion("/x", one, b"1"), ByVersion("/x", two, b"2")])]))
    versions = [b"1", b"2", b"1", b"3"]
    found = [index.find(ASGIRequest(http_scope(path="/v/x", headers=[(b"version", v)]))) for v in versions]
    assert [target_of(index, to) for to in found] == [one, two, one, None]


class Anything(BaseRoute):
    """A custom route without a pattern."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        return Match.FULL if scope["path"] == "/own" else Match.NONE, {"endpoint": endpoint("own")}


def test_a_route_without_a_pattern_is_called_too() -> None:
    """Such a route accepts any path, and its endpoint is unknown."""
    last = endpoint("last")
    index = index_of(Starlette(routes=[Anything(), Route("/{x}", last)]))
    route = index.find(ASGIRequest(http_scope(path="/own")))
    assert route.endpoint == UNMATCHED
    assert target_of(index, index.find(ASGIRequest(http_scope(path="/other")))) is last


def test_the_route_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index caches up to ten thousand paths, and never a long one."""
    index, asked = index_of(Starlette(routes=[Route("/{x}", endpoint("x"))])), list[str]()
    find = RouteTable.find
    monkeypatch.setattr(RouteTable, "find", lambda table, scope: asked.append(scope["path"]) or find(table, scope))
    requests = [ASGIRequest(http_scope(path=f"/{i}")) for i in range(10_050)]
    for some in (requests, requests[::-1]):
        asked.clear()
        for request in some:
            index.find(request)
    assert 0 < len(requests) - len(asked) <= 10_000
    asked.clear()
    for _ in range(2):
        index.find(ASGIRequest(http_scope(path="/" + "x" * 300)))
    assert len(asked) == 2


def test_an_application_that_mounts_itself_is_read_once() -> None:
    """The search ends at a mount that it has already read."""
    router = Router([Route("/x", endpoint("x"))])
    router.mount("/again", app=router)
    assert find_route(Starlette(routes=[Mount("/", app=router)]), "/x").endpoint == "/x"


@each("count", [3, 300])
def test_a_new_path_is_compared_with_few_routes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a path without a cache entry, the index asks only the routes that can match, for any number of routes."""
    calls: list[str] = []
    matches = Route.matches
    monkeypatch.setattr(Route, "matches", lambda route, scope: calls.append(route.path) or matches(route, scope))
    app = Starlette(routes=[Route(f"/r{i}/{{x}}", endpoint(str(i))) for i in range(count)])
    assert find_route(app, f"/r{count - 1}/7").endpoint == f"/r{count - 1}/{{x}}"
    assert len(calls) == 1
