"""Functions of features get the request of the framework, and one function may return several features."""

from collections.abc import Callable
from typing import Any, TypedDict

import django.http
import flask
import pytest
from calls import OK, http_scope, limited, send_bare
from sites import CLIENT, ASGISite, Build, Call
from starlette.applications import Starlette
from starlette.authentication import SimpleUser
from starlette.requests import HTTPConnection, Request
from starlette.routing import WebSocketRoute
from starlette_apps import application
from tables import each, expect_error
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.wsgi.exchange import WSGIRequest

Identify = Callable[[Any], Any]
TYPES = {
    "asgi": ASGIRequest,
    "wsgi": WSGIRequest,
    "starlette": HTTPConnection,
    "fastapi": HTTPConnection,
    "flask": flask.Request,
    "django": django.http.HttpRequest,
    "async django": django.http.HttpRequest,
}


class Known(TypedDict, total=False):
    user: str
    plan: str


class Tenant(Known, total=False):
    tenant: int | None


def plans(*names: str, **options: Any) -> list[Rule]:
    return [Rule(name=name, limits="2/minute", key=[name], **options) for name in names]


async def check_post(call: Call) -> int:
    await call.check("post")
    return 200


@each("is_async", [False, True])
def test_functions_receive_the_request_of_the_framework(site: Build, is_async: bool) -> None:
    """Feature functions, cost functions and your own response receive what views know. Plain WSGI awaits none."""
    seen: list[Any] = []

    def see(request: Any, *_: Any) -> int:
        seen.append(request)
        return int(request.headers["x-cost"])

    async def asee(request: Any) -> int:
        return see(request)

    def reject(request: Any, _: Any) -> Any:
        see(request)
        raise LookupError

    if is_async and site.name == "wsgi":
        return
    served = site(plans("tenant", cost=see), features={"tenant": asee if is_async else see}, rejection=reject)
    assert served.statuses(3, headers={"x-cost": "1"}) == [200, 200, 500]
    assert len(seen) == 7
    assert all(isinstance(request, TYPES[site.name]) for request in seen)


def identities(returned: Any, calls: list[Any], is_async: bool) -> Identify:
    """Return a function that returns these features, and notes its calls."""

    def identify(request: Any) -> Tenant | None:
        calls.append(request)
        return returned  # type: ignore[no-any-return]

    async def aidentify(request: Any) -> Tenant | None:
        return identify(request)

    return aidentify if is_async else identify


@each("is_async", [False, True])
def test_one_function_returns_several_features(site: Build, is_async: bool) -> None:
    """It is called once per request, even when the view decides more rules. Plain WSGI cannot await it."""
    calls: list[Any] = []
    rules = [Rule(name=name, limits="9/minute", key=[name]) for name in ("user", "tenant", "ip")]
    rules.append(Rule(name="post", limits="2/minute", key=["plan", "user"], match={"view": ""}))
    known = {"user": "ann", "tenant": 7, "plan": "free", "unused": object()}
    if is_async and site.name == "wsgi":
        return
    served = site(rules, check_post, features=identities(known, calls, is_async))
    assert served.statuses(3) == [200, 200, 429]
    assert len(calls) == 3
    left = served.limiter.peek({"user": "ann", "tenant": "7", "ip": CLIENT}, cost=0)
    assert [decision.remaining for decision in left.decisions] == [6, 6, 6]


@each("returned", [None, {}, {"tenant": None}])
def test_a_feature_that_is_not_returned_is_missing(site: Build, returned: Any) -> None:
    """None stands for a request of which nothing is known. A built-in feature is then read as usual."""
    served = site(plans("tenant", "user"), features=identities(returned, [], is_async=False))
    assert served.statuses(3) == [200] * 3


@each("returned", ["ann", {"ip": CLIENT}])
def test_a_mistake_is_never_a_missing_limit(site: Build, returned: Any) -> None:
    """Another value than a mapping, and a feature of the request itself, are errors."""
    served = site(plans("tenant"), features=identities(returned, [], is_async=False))
    assert served.statuses(2) == [500, 500]


def undeclared(request: Any) -> Any:
    return {"user": "ann", "usr": "ann", "plan": "free"}


def known(request: Any) -> Known:
    return {"user": "ann", "plan": "free"}


BY_FEATURE: list[dict[str, Any]] = [
    {"key": ["usr"]},
    {"key": ["usr|ip"]},
    {"key": ["usr.id", "ip"]},
    {"match": {"usr": "ann"}},
    {"per": {"usr": {"ann": ["9/minute"]}}},
    {"cost": "usr|1"},
]
"""Options of a rule that read a feature, whose name is a typo."""


@each("options", BY_FEATURE)
@each("identify", [undeclared, known])
def test_a_feature_that_nothing_declares_stops_the_start(site: Build, options: Any, identify: Identify) -> None:
    """A rule with a typo would never apply. The message has the option, and what to write."""
    option = next(iter(options))
    message = rf"{option}(\.usr)?: uses the feature 'usr', but nothing provides it\. Did you mean 'user'\? If not,"
    message += " annotate the function of features with a TypedDict that has the field 'usr'"
    rules = [Rule(name="site", limits="9/minute", key=["user"]), Rule(name="api", limits="1/minute", **options)]
    with pytest.raises(ConfigError, match=message):
        raise site(rules, features=identify).call().extensions["error"]


@each("kind", ["allow", "deny"])
def test_a_list_by_a_feature_that_nothing_declares_stops_the_start(site: Build, kind: str) -> None:
    """The list would have no effect."""
    message = rf"lists.{kind}.tenant: uses the feature 'tenant', but nothing provides it. Annotate the function"
    with pytest.raises(ConfigError, match=message):
        raise site({"lists": {kind: {"tenant": ["acme"]}}}, features=known).call().extensions["error"]


def test_annotations_are_checked_at_the_start() -> None:
    """The annotation declares what the function returns: features by name, and none that the request itself has."""

    class Own(TypedDict):
        ip: str

    def scalar(request: Any) -> str:
        return "ann"

    def own(request: Any) -> Any: ...

    own.__annotations__["return"] = Own
    for features, message in (
        (scalar, r"features: expected a function .* by name; got .* str"),
        (own, "features: the function cannot return 'ip', which is read from the request"),
        (7, "features: expected a table of functions by feature, or one function; got 7"),
    ):
        expect_error(message, ASGISite, plans("tenant"), features=features)


@each(("returned", "statuses"), [({"user": None}, [200, 200, 200]), ({}, [200, 200, 429])])
def test_none_is_no_user(returned: Any, statuses: list[int]) -> None:
    """A function that returns None for a feature says that it is missing. One that leaves it out says nothing."""
    app = limited(OK, Limiter(plans("user")), features=lambda request: returned)
    assert [send_bare(app, http_scope(user=SimpleUser("ann")))[0]["status"] for _ in range(3)] == statuses


def test_a_websocket_and_another_framework_have_a_request() -> None:
    """A handshake has no Request, only an HTTPConnection. Other frameworks keep an application in the scope, too."""
    seen: list[Any] = []

    def identify(connection: HTTPConnection) -> Tenant:
        seen.append(connection)
        return {"tenant": 7}

    async def view(websocket: Any) -> None:
        await websocket.accept()
        await of_starlette.check(websocket, "tenant")

    app = application([WebSocketRoute("/ws", view)], *plans("tenant"), features=identify)
    assert [kinds(connect(app)) for _ in range(2)] == [["accept"], [1008]]
    for served, scope in ((OK, {"app": object()}), (Starlette(), {})):  # a middleware around it sees no "app" yet
        other = of_starlette.RateLimitMiddleware(served, limiter=Limiter(plans("tenant")), features=identify)
        send_bare(other, http_scope(**scope))
    assert [type(connection) for connection in seen] == [HTTPConnection, HTTPConnection, ASGIRequest, Request]
