"""The parameters of ``match.path`` as features, with and without the routes of a framework."""

from __future__ import annotations

from typing import Any

import flask_calls
from calls import BODY, START, ask, ask_wsgi, sending
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette_apps import application, statuses
from tables import expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.rules.paths import Captures
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware


def test_a_parameter_with_one_place_is_captured() -> None:
    """Two parameters in one segment, or one between two deep wildcards, have no certain place."""
    for pattern, path, expected in (
        ("/users/{user}", "/users/ann/", {"user": "ann"}),
        ("/{tenant}/**", "//acme", {"tenant": "acme"}),
        ("/**/{name}.pdf", "/a/b/c.pdf", {"name": "c"}),
        ("/{a}/{rest:path}/{b}", "/1/2/3/4", {"a": "1", "rest": "2/3", "b": "4"}),
        ("/{a}/{rest:path}", "/1", {"a": "1", "rest": ""}),
        ("/{a}-{b}/{c*}/x", "/1-2/3/x", {}),
        ("/**/{a}/**/{b}", "/1/2/3", {"b": "3"}),
        ("/{x:path}/{a}/{y:path}", "/1/2/3", {}),
    ):
        captures = Captures([pattern.replace("{c*}", "*")])
        assert captures.read(path) == {f"path:{name}": value for name, value in expected.items()}


def test_an_ambiguous_path_is_invalid() -> None:
    """So is a path that fits no pattern: the rule may apply because of the route."""
    captures = Captures(["/users/{user}", "/teams/{team}"], ["path:user"])
    assert captures.read("/teams/7") == {}
    for path in ("/users/../x", "/users/a%2Fb", "/other", INVALID):
        assert captures.read(path) == {"path:user": INVALID}


def tenants(**changed: Any) -> Limiter:
    rule: Any = {"key": ["path:tenant"], "match": {"path": "/{tenant}/**"}, "limits": "2/minute", **changed}
    return Limiter([Rule(name="tenant", **rule)], clock=ManualClock(1_000_000.0))


def test_a_function_of_limits_is_passed_the_capture() -> None:
    """A limiter that knows no routes reads it from the path, also to reset a client."""
    request = {"path": "/acme/a", "method": "GET"}
    functions = (lambda tenant: {"acme": "1/minute"}[tenant], lambda entry: {"acme": "1/minute"}[entry])
    for option in ({"limits": functions[0]}, {"limits": functions[1]}, {"per_key": functions[1]}):
        limiter = tenants(**option)
        assert [limiter.hit(request).allowed for _ in range(2)] == [True, False]
        limiter.reset("tenant", request)
        assert limiter.hit(request)


PATHS = ("/acme/a", "/ACME/b", "/acme", "/other/a")
EXPECTED = [200, 200, 429, 200]


def test_captures_are_features_without_a_framework() -> None:
    """A limiter, and middleware of plain applications, know no routes."""

    def plain(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    wsgi, asgi = WSGIMiddleware(plain, limiter=tenants()), RateLimitMiddleware(sending(START, BODY), limiter=tenants())
    assert [ask_wsgi(wsgi, path).status_code for path in PATHS] == EXPECTED
    assert [ask(asgi, path).status_code for path in PATHS] == EXPECTED
    limiter = tenants()
    assert [limiter.hit({"path": path}).allowed for path in PATHS] == [True, True, False, True]
    limiter.reset("tenant", {"path": "/acme/z"})
    assert limiter.hit({"path": "/acme/a"})


def test_captures_are_features_in_frameworks() -> None:
    """The names of the route's own parameters may differ, and need not exist."""

    async def view(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    routes = [Route("/{organisation}", view), Route("/{organisation}/{rest:path}", view)]
    assert statuses(application(routes, limiter=tenants()), *PATHS) == EXPECTED
    views = {"/<organisation>": flask_calls.hello, "/<organisation>/<path:rest>": flask_calls.hello}
    app = flask_calls.app_of(tenants(), views)
    assert [flask_calls.ask(app, path).status_code for path in PATHS] == EXPECTED


def test_a_parameter_of_the_route_takes_precedence() -> None:
    """A converter gives one value to all spellings of a number, and the text of the path does not."""
    app = flask_calls.app_of(
        tenants(match={"path": "/items/{tenant}"}), {"/items/<int:tenant>": flask_calls.hello, "/x": flask_calls.hello}
    )
    assert flask_calls.statuses(app, "/items/7", 1) + flask_calls.statuses(app, "/items/07", 2) == [200, 200, 429]


def test_matches_and_tables_use_captures() -> None:
    """A rule for some values, and limits by value."""
    some = tenants(match={"path": "/{tenant}/**", "path:tenant": ["acme"]}, key=["ip"])
    assert [some.hit({"path": path, "ip": "192.0.2.7"}).rules for path in ("/acme/a", "/b/a")] == [("tenant",), ()]
    by_value = tenants(key=["ip"], per={"path:tenant": {"acme": ["1/minute"]}})
    assert [by_value.hit({"path": path, "ip": "192.0.2.7"}).allowed for path in ("/acme/a", "/acme/b")] == [True, False]


def test_a_parameter_without_one_place_is_an_error() -> None:
    """Where no routes are known, nothing provides it."""
    expect_error(
        "'path:b', but nothing provides it", WSGIMiddleware, flask_calls.hello, limiter=tenants(key=["path:b"])
    )
