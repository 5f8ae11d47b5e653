"""Every mistake that would disable a limit is an error that names the problem."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette_apps import application, hello, statuses
from tables import each

from ratelimit_mw import ConfigError, Limiter, load_settings
from ratelimit_mw.starlette import RateLimitMiddleware, check, exempt, limit


@each(
    ("limits", "options", "message"),
    [
        ("5/fortnight", {}, r"@limit at .*test_starlette_mistakes\.py:\d+: limits: cannot parse"),
        ("5/minute", {"key": ["user-agent"]}, r"key\[0\]: expected a feature"),
        ("5/minute", {"match": {"path": "/x"}}, "a decorated view has the path of its route"),
        ("5/minute", {"per_route": True}, r"@limit at .*py:\d+: per_route: unknown option. Did you mean 'per_key'"),
        (hello, {}, r'@limit on .*hello: expected @limit\("5/minute"\)'),
    ],
)
def test_an_invalid_limit_is_an_error_at_its_decorator(limits: Any, options: Any, message: str) -> None:
    """A module with an invalid limit cannot be imported."""
    with pytest.raises(ConfigError, match=message):
        limit(limits, **options)


@exempt("missing")
async def _mistyped(request: Any) -> Response:
    return PlainTextResponse("never")


def test_a_parameter_may_come_from_a_mount_or_only_one_route() -> None:
    """A limit by a parameter needs one route that has it. A rule for all routes needs an alternative in its key."""
    view = limit("1/minute", key=["path:tenant"])(hello)
    settings = {"rules": [{"name": "all", "key": ["path:missing|ip"], "limits": "99/minute"}]}
    routes = [Mount("/t/{tenant}", routes=[Route("/x", view)]), Route("/plain", view)]
    app = application(routes, limiter=Limiter.from_settings(load_settings(settings)))
    assert statuses(app, "/t/a/x", "/t/b/x", "/t/a/x", "/plain", "/plain") == [200, 200, 429, 200, 200]


def test_a_mistake_is_raised_until_it_is_fixed() -> None:
    """Without a lifespan every request raises it, so none is served without its limits. A route may come late."""
    app = application([Route("/", hello)])
    assert statuses(app, "/") == [200]
    app.routes.append(Route("/late", _mistyped))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"@exempt on test_starlette_mistakes._mistyped: unknown rule 'missing'"):
            ask(app)
    app.routes.pop()
    assert statuses(app, "/") == [200]


LOGIN: Any = {"name": "login", "limits": "5/minute", "key": ["email"], "match": {"view": ""}}


@each("method", [check, check.reset])
def test_a_check_of_a_body_that_was_not_read_names_the_feature(method: Any) -> None:
    """The middleware reads bodies only for the rules that match. The view knows the value."""

    async def view(request: Any) -> Response:
        await method(request, "login", **request.query_params)
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", view)])
    app.add_middleware(RateLimitMiddleware, settings={"rules": [LOGIN]})
    assert ask(app, "/?email=ann@x.org").status_code == 200
    with pytest.raises(ConfigError, match=r"check\('login'\): the rule uses the feature 'email', .* Pass email=VALUE"):
        ask(app)
