"""Functions of features in every framework: they get its own request, and one function may return several features."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NotRequired, Required, TypedDict

import django.http
import flask
import pytest
from calls import http_scope, limited, send_bare
from check_sites import SITES, Site
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, FeatureTypeError, Limiter, Rule
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.testing import ManualClock

everywhere = pytest.mark.parametrize("kind", SITES.values(), ids=list(SITES))
SiteType = type[Site]
TYPES = {"flask": flask.Request, "django": django.http.HttpRequest, "async django": django.http.HttpRequest}


def plans(*names: str, **options: Any) -> Limiter:
    rules = [Rule(name=name, limits="2/minute", key=[name], **options) for name in names]
    return Limiter(rules, clock=ManualClock(1_000_000.0))


def statuses(site: Site, *paths: str) -> list[int]:
    return [site.ask(path).status_code for path in paths]


@pytest.mark.parametrize("name", SITES)
def test_functions_receive_the_request_of_the_framework(name: str) -> None:
    """Feature functions, cost functions and your own response receive what views of the framework know."""
    seen: list[Any] = []

    def see(request: Any, *_: Any) -> Any:
        seen.append(request)
        return 1

    def reject(request: Any, _: Any) -> Any:
        seen.append(request)
        raise LookupError

    limiter = plans("tenant", cost=see)
    site = SITES[name](limiter, features={"tenant": see}, rejection=reject)
    assert statuses(site, "/done", "/done") == [200, 200]
    with suppress(LookupError):
        site.ask("/done")
    assert len(seen) == 7
    assert all(isinstance(request, TYPES.get(name, HTTPConnection)) for request in seen)


def test_an_application_of_no_framework_has_the_request_of_the_package() -> None:
    """Plain ASGI applications need no Starlette."""
    seen: list[Any] = []
    app = limited(_plain, plans("tenant"), features={"tenant": lambda request: seen.append(request) or "a"})
    send_bare(app, http_scope())
    send_bare(app, http_scope(app=object()))  # other frameworks keep their application in the scope too
    assert [type(request) for request in seen] == [ASGIRequest] * 2


async def _plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


Identify = Callable[[Any], Any]


class Known(TypedDict, total=False):
    user: str
    plan: str


class Tenant(Known, total=False):
    tenant: int | None


def identities(returned: Any, calls: list[Any], is_async: bool) -> Identify:
    """Return a function that returns these features, and notes its calls."""

    def identify(request: Any) -> Tenant | None:
        calls.append(request)
        return returned  # type: ignore[no-any-return]

    async def aidentify(request: Any) -> Tenant | None:
        return identify(request)

    return aidentify if is_async else identify


@everywhere
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_function_returns_several_features(kind: SiteType, is_async: bool) -> None:
    """It is called once per request, even when the view decides more rules."""
    calls: list[Any] = []
    rules = [Rule(name=name, limits="9/minute", key=[name]) for name in ("user", "tenant", "ip")]
    rules.append(Rule(name="post", limits="2/minute", key=["plan", "user"], match={"view": ""}))
    limiter = Limiter(rules, clock=ManualClock(1_000_000.0))
    known = {"user": "ann", "tenant": 7, "plan": "free", "unused": object()}
    site = kind(limiter, features=identities(known, calls, is_async))
    assert statuses(site, *["/check"] * 3) == [200, 200, 429]
    assert len(calls) == 3
    left = limiter.peek({"user": "ann", "tenant": "7", "ip": "192.0.2.7"}, cost=0)
    assert [decision.remaining for decision in left.decisions] == [6, 6, 6]


@everywhere
def test_a_feature_that_is_not_returned_is_missing(kind: SiteType) -> None:
    """None stands for a request of which nothing is known. A built-in feature is then read as usual."""
    for returned in (None, {}, {"tenant": None}):
        site = kind(plans("tenant", "user"), features=identities(returned, [], is_async=False))
        assert statuses(site, *["/done"] * 3) == [200] * 3


@everywhere
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("ann", "features: expected features by name, .* got str"),
        ({"ip": "192.0.2.7"}, "features: the function cannot return 'ip'"),
    ],
)
def test_a_mistake_is_never_a_missing_limit(kind: SiteType, returned: Any, message: str) -> None:
    """Another value than a mapping, and a feature of the request itself, are errors."""
    site = kind(plans("tenant"), features=identities(returned, [], is_async=False))
    if kind in (SITES["flask"], SITES["django"], SITES["async django"]):
        assert site.ask("/done").status_code == 500
    else:
        with pytest.raises((ConfigError, FeatureTypeError), match=message):
            site.ask("/done")


def undeclared(request: Any) -> Any:
    return {"user": "ann", "usr": "ann", "plan": "free"}


def known(request: Any) -> Known:
    return {"user": "ann", "plan": "free"}


async def aknown(request: Any) -> Known | None:
    return None


BY_FEATURE: list[dict[str, Any]] = [
    {"key": ["usr"]},
    {"key": ["usr|ip"]},
    {"key": ["usr.id", "ip"]},
    {"match": {"usr": "ann"}},
    {"per": {"usr": {"ann": ["9/minute"]}}},
    {"cost": "usr|1"},
]
"""Options of a rule that read a feature, whose name is a typo."""


@everywhere
@pytest.mark.parametrize("options", BY_FEATURE, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("identify", [undeclared, known, aknown])
def test_a_feature_that_nothing_declares_stops_the_start(kind: SiteType, options: Any, identify: Identify) -> None:
    """A rule with a typo would never apply. The message has the option, and what to write."""
    option = next(iter(options))
    message = rf"{option}(\.usr)?: uses the feature 'usr', but nothing provides it\. Did you mean 'user'\? If not,"
    message += " annotate the function of features with a TypedDict that has the field 'usr'"
    rules = [Rule(name="site", limits="9/minute", key=["user"]), Rule(name="api", limits="1/minute", **options)]
    with pytest.raises(ConfigError, match=message):
        kind(Limiter(rules), features=identify).ask("/done")


@pytest.mark.parametrize("kind", ["allow", "deny"])
def test_a_list_by_a_feature_that_nothing_declares_stops_the_start(kind: str) -> None:
    """The list would have no effect."""
    settings: Any = {"rules": [], "lists": {kind: {"tenant": ["acme"]}}}
    message = rf"lists.{kind}.tenant: uses the feature 'tenant', but nothing provides it. Annotate the function"
    with pytest.raises(ConfigError, match=message):
        limited(_plain, Limiter.from_settings(settings), features=known)


def test_annotations_are_checked_at_the_start() -> None:
    """The annotation declares what the function returns: features by name, and none that the request itself has."""

    class Own(TypedDict):
        ip: str

    def scalar(request: Any) -> str:
        return "ann"

    def own(request: Any) -> Any: ...

    own.__annotations__["return"] = Own
    limited(_plain, plans("plan"), features=known)
    with pytest.raises(ConfigError, match=r"features: expected a function .* by name; got .* str"):
        limited(_plain, plans("tenant"), features=scalar)
    with pytest.raises(ConfigError, match="features: the function cannot return 'ip', which is read from the request"):
        limited(_plain, plans("ip"), features=own)
    with pytest.raises(ConfigError, match="features: expected a table of functions by feature, or one function; got 7"):
        limited(_plain, plans("tenant"), features=7)


class Account(TypedDict, total=False):
    user: Required[str]
    owner: NotRequired[object]
    groups: NotRequired[list[str] | None]


def account(request: Any) -> Account | None: ...


@pytest.mark.parametrize(
    ("part", "problem"),
    [("groups", "is of type list, which has no stable text"), ("user.id", "is of type str, which has no attribute")],
)
def test_the_types_of_declared_features_are_checked_at_the_start(part: str, problem: str) -> None:
    """Each request would fail. A reload finds such a rule as well, so the earlier rules stay."""
    limited(_plain, plans("user", "owner", "owner.id"), features=account)
    with pytest.raises(ConfigError, match=rf"features\['{part.partition('.')[0]}'\]: the feature .* {problem}"):
        limited(_plain, plans(part), features=account)
    settings: Any = {"rules": [{"name": "a", "limits": "1/hour", "key": ["user"]}]}
    limiter = Limiter.from_settings(settings)
    app = limited(_plain, limiter, features=account)
    settings["rules"][0]["key"] = [part]
    with pytest.raises(ConfigError, match=problem):
        limiter.reload()
    assert send_bare(app, http_scope())[0]["status"] == 200


def test_a_similar_name_in_a_request_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """No request fails because of what the function returns for one client. The log has the two names once."""
    app = limited(_plain, plans("user"), features=lambda request: {"users": 3, "unused": 1})
    assert [send_bare(app, http_scope())[0]["status"] for _ in range(3)] == [200] * 3
    expected = "the function of features returns 'users', but a rule uses 'user'. If one is a typo, fix it"
    assert [message for message in caplog.messages if "returns" in message] == [expected]


def test_websockets_have_a_connection() -> None:
    """A handshake has no Request, only an HTTPConnection."""
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    from ratelimit_mw.starlette import RateLimitMiddleware, check

    seen: list[Any] = []

    def identify(connection: HTTPConnection) -> Tenant:
        seen.append(connection)
        return {"tenant": 7}

    async def view(websocket: WebSocket) -> None:
        await websocket.accept()
        await check(websocket, "tenant")

    app = Starlette(routes=[WebSocketRoute("/ws", view)])
    app.add_middleware(RateLimitMiddleware, limiter=plans("tenant"), features=identify)
    assert [kinds(connect(app)) for _ in range(2)] == [["accept"], [1008]]
    assert [type(connection) for connection in seen] == [HTTPConnection] * 2
