"""Rules by endpoint, view and path parameters, and values of features that need a stable text."""

from collections.abc import Callable
from typing import Any

import flask
from calls import ask
from django.urls import include
from django.urls import path as django_path
from django_calls import hello, project
from fastapi import APIRouter, FastAPI
from sites import CLIENT, NOW, PLAIN, Build, only, routed
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from tables import each, expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw import fastapi as of_fastapi
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.testing import ManualClock

Ask = Callable[..., int]


@only({"starlette", "fastapi", "flask"})  # Django leaves methods to the view
@each("match", [{"endpoint": "/items/{item}"}, {"view": "items-item"}])
def test_a_405_counts_under_the_template_of_its_path(site: Build, match: Any) -> None:
    """As a request that reaches the view does, with the parameters of the path."""
    served = site(Rule(limits="1/minute", match=match, key=["endpoint", "path:item"]), {"/items/{item}": 200})
    asked = [("TRACE", 7), ("PUT", 7), ("GET", 7), ("GET", 8), ("TRACE", 8)]
    statuses = [served.call(method, f"/items/{item}").status_code for method, item in asked]
    assert statuses == [405, 429, 429, 200, 429]
    assert served.call("TRACE", "/nowhere").status_code == 404


@routed
@each("match", [{"view": "items-item"}, {"view": ["items-item", "other"], "path": "/items/**"}])
def test_a_rule_names_a_view(site: Build, match: Any) -> None:
    """It holds for all paths of the view, and for no other. A path has to match, too."""
    served = site(Rule(limits="1/minute", key=[], match=match), {"/items/{item}": 200, "/other": 200})
    assert [served.call(path=path).status_code for path in ("/items/1", "/items/2", "/other")] == [200, 429, 200]


def names_in_starlette(limiter: Limiter) -> Ask:
    routes = [
        Mount("/auth", routes=[Route("/login/{id}", items, name="login"), Route("/other", add)], name="auth"),
        Mount("/unnamed", routes=[Route("/x", items, name="inside")]),
        Mount("/static", app=lambda scope, receive, send: add(None), name="static"),
        Host("{shop}.example", app=Starlette(routes=[Route("/y", items, name="inside")]), name="shop"),
        *(Route("/items", items), Route("/items", add, methods=["POST"])),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(of_starlette.RateLimitMiddleware, limiter=limiter)
    return lambda path, method="GET": ask(app, path, method).status_code


def names_in_fastapi(limiter: Limiter) -> Ask:
    auth, inner, app = APIRouter(prefix="/auth"), FastAPI(), FastAPI()
    auth.get("/login/{number}", name="login")(lambda number: "")
    inner.get("/x", name="inside")(lambda: "")
    app.include_router(auth)
    app.mount("/inner", inner, name="inner")
    app.get("/items")(lambda: "")
    app.post("/items")(lambda: "")  # both functions have one name
    app.add_middleware(of_fastapi.RateLimitMiddleware, limiter=limiter)
    return lambda path, method="GET": ask(app, path, method).status_code


def names_in_flask(limiter: Limiter) -> Ask:
    app, auth = flask.Flask("app"), flask.Blueprint("auth", "auth", url_prefix="/auth")
    auth.add_url_rule("/login/<number>", "login", lambda number: "")
    auth.add_url_rule("/signin", "login", defaults={"number": "1"})
    app.add_url_rule("/other", "other", lambda: "")
    app.get("/items")(items)
    app.post("/items")(add)
    app.register_blueprint(auth)
    of_flask.RateLimiter(app, limiter=limiter)
    return lambda path, method="GET": app.test_client().open(path, method=method).status_code


def names_in_django(limiter: Limiter) -> Ask:
    account = [django_path("login/<int:number>", hello, name="login"), django_path("other", hello)]

    def status(path: str) -> int:
        with project(limiter, django_path("auth/", include((account, "auth"), "members"))) as served:
            return int(served.ask(path).status_code)

    return status


@each(
    ("serve", "view", "limited", "other"),
    [
        (names_in_starlette, "auth:login", ["/auth/login/1", "/auth/login/2"], "/auth/other"),
        (names_in_starlette, "inside", ["/unnamed/x"], "/auth/other"),
        (names_in_fastapi, "login", ["/auth/login/1", "/auth/login/2"], "/inner/x"),
        (names_in_fastapi, "inner:inside", ["/inner/x"], "/auth/login/1"),
        (names_in_flask, "auth.login", ["/auth/login/2", "/auth/signin"], "/other"),
        (names_in_django, "members:login", ["/auth/login/1", "/auth/login/2"], "/auth/other"),
    ],
)
def test_a_name_has_the_namespaces_of_its_view(serve: Any, view: str, limited: list[str], other: str) -> None:
    """As the framework writes it when it builds URLs."""
    status = serve(Limiter([Rule(limits="1/minute", key=[], match={"view": view})], clock=ManualClock(NOW)))
    assert [status(path) for path in limited * 2] == [200, *[429] * (2 * len(limited) - 1)]
    assert [status(other) for _ in range(2)] == [200, 200]


@each("serve", [names_in_starlette, names_in_fastapi, names_in_flask])
def test_two_functions_of_one_path_are_two_views(serve: Any) -> None:
    """The method chooses the function. In Django one view takes all methods of a path."""
    status = serve(Limiter([Rule(limits="1/hour", key=["view", "ip"])], clock=ManualClock(NOW)))
    assert [status("/items", method) for method in ("GET", "POST", "HEAD", "POST")] == [200, 200, 429, 429]


@routed
def test_an_endpoint_is_the_template_of_its_route(site: Build) -> None:
    """All paths of a route share a count, and so do all paths without a route."""
    served = site(Rule(limits="1/minute", key=["endpoint"]), {"/items/{item}": 200, "/other": 200})
    paths = ("/items/1", "/items/2", "/other", "/nowhere", "/.env")
    assert [served.call(path=path).status_code for path in paths] == [200, 429, 200, 404, 429]
    assert served.left(endpoint="/items/{item}") == [0]


@routed
def test_a_view_has_one_count_for_all_its_routes_and_methods(site: Build) -> None:
    """Other views have counts of their own, and all requests without a route have one together."""
    views = {"/a /b/{item}": 200, "/other": 200}
    served = site(Rule(limits="1/minute", key=["view", "ip"]), views)
    asked = ("GET /a", "POST /a", "GET /b/1", "GET /other", "PUT /other", "GET /nowhere", "POST /.env")
    statuses = [served.call(*line.split()).status_code for line in asked]
    assert statuses == [200, 429, 429, 200, 429, 404, 429]
    assert served.call(path="/a", client="192.0.2.8").status_code == 200


@routed
def test_single_views_have_limits_of_their_own(site: Build) -> None:
    """By their names, which are those of ``match.view``."""
    served = site(
        Rule(limits="1/minute", key=["view", "ip"], per={"view": {"other": ["2/minute"]}}), {"/a": 200, "/other": 200}
    )
    assert [served.statuses(3, path=path) for path in ("/a", "/other")] == [[200, 429, 429], [200, 200, 429]]


def items(request: Any = None) -> Any:
    return PlainTextResponse("") if request else ""


def add(request: Any = None) -> Any:
    return PlainTextResponse("") if request else ""


@only(PLAIN)
def test_without_routes_a_view_is_an_error_at_the_start(site: Build) -> None:
    """The error says what to write. A function of yours provides the feature everywhere."""
    for options, message in (
        ({"key": ["view", "ip"]}, "key: .* have no names"),
        ({"match": {"view": "login"}}, r"match\.view: .* have no names"),
        ({"match": {"endpoint": "/x"}}, r"match\.endpoint: the routes .* are not known"),
    ):
        expect_error(message, lambda options=options: site(Rule(limits="1/minute", **options)).start())
        if "match" in options:  # such as a rule of another application with the same file
            site(Rule(limits="1/minute", unrouted=True, **options)).start()
    assert site(Rule(limits="1/minute", key=["view"]), features={"view": lambda _: "all"}).statuses(2) == [200, 429]


@routed
def test_a_parameter_of_a_path_is_a_feature(site: Build) -> None:
    """In all routes that have it. A route without it is not limited."""
    served = site(Rule(limits="1/minute", key=["path:item"]), {"/a/{item}": 200, "/b/{item}": 200, "/c/{other}": 200})
    paths = ("/a/1", "/a/2", "/b/1", "/c/1", "/c/1")
    assert [served.call(path=path).status_code for path in paths] == [200, 200, 429, 200, 200]


@routed
def test_a_stated_type_has_one_count(site: Build) -> None:
    """The route takes any text, and the rule says what the application makes of it."""
    served = site(Rule(limits="1/minute", key=["path:item as int"]), {"/items/{item}": 200})
    asked = ("7", "007", "+7", "7.0", "x", "y", "8")
    statuses = [served.call(path=f"/items/{item}").status_code for item in asked]
    assert statuses == [200, 429, 429, 429, 200, 429, 200]


# -- functions of features and of limits -----------------------------------------------------------------------


class Person:
    """A user as frameworks keep it."""

    def __init__(self, visits: int) -> None:
        self.id = "ann"
        self.visits = visits


VISITS = iter(range(1_000_000))
Read = Callable[[Any], Any]


def anyone(request: Any) -> Any:
    return Person(next(VISITS))


async def awaited(request: Any) -> Person:
    return Person(next(VISITS))


@each("read", [anyone, awaited])
def test_a_user_has_one_count_whatever_changes(site: Build, read: Read) -> None:
    """The key names the attribute that identifies a user. Plain WSGI awaits no function."""
    if read is not awaited or site.name != "wsgi":
        served = site(Rule(limits="1/minute", key=["user.id"]), features={"user": read})
        assert served.statuses(6) == [200] + [429] * 5


def test_an_unstable_value_is_never_served(site: Build) -> None:
    """Each request is an error: it is never served without its limit."""
    assert site(Rule(limits="1/minute", key=["user"]), features={"user": anyone}).statuses(3) == [500] * 3


def limits_of(ip: str) -> str:
    return "2/minute" if ip in (CLIENT, "ann") else "5/minute"


async def alimits_of(ip: str) -> str:
    return limits_of(ip)


@each("limits", [limits_of, alimits_of])
def test_functions_limit_requests(place: Build, limits: Any) -> None:
    """Sync and async, in blocking and async applications."""
    served = place({"limits": limits, "key": ["ip"], "name": "login"}, 200)
    responses = [served.call() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.headers["x-ratelimit-limit"] for response in responses] == ["2"] * 3


def failing(ip: str) -> str:
    raise KeyError(ip)


def test_a_function_that_fails_rejects_requests(place: Build) -> None:
    """The limit does not go missing, and the client learns that the server is at fault."""
    response = place({"limits": failing, "key": ["ip"], "name": "login"}, 200).call()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
